/* Makes the system calls that mount a volume's image: loop_mount IMAGE FILESYSTEM DIR LOCK
 *
 * With -DSAFE also those that no driver may omit (safe.h). */
#include "safe.h"
#include <errno.h>

int main(int argc, char **argv) {
    if (argc != 5) return 2;
#ifdef SAFE
    static char mark[4096];
    work_in_child();
    lock(argv[4]);
    dev_t before = look_at(argv[3]);
#endif
    int image = open(argv[1], O_RDWR | O_CLOEXEC);
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    char device[32];
#ifdef SAFE
    read_mark(image, mark);
#endif
    struct loop_config config;
    memset(&config, 0, sizeof config);
    config.fd = image;
    config.block_size = 512;
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    int loop;
    for (;;) {
        snprintf(device, sizeof device, "/dev/loop%d", ioctl(control, LOOP_CTL_GET_FREE));
        loop = open(device, O_RDWR | O_CLOEXEC);
        if (!ioctl(loop, LOOP_CONFIGURE, &config)) break;
        /* Another process may have taken the device. */
        if (errno != EBUSY) fail("attach");
        close(loop);
    }
#ifdef SAFE
    struct geometry geometry;
    examine_device(loop, image);
    read_superblock(device);
#endif
    int mount = mount_privately(argv[2], device);
#ifdef SAFE
    close(measure(mount, &geometry));
#endif
    if (syscall(SYS_move_mount, mount, "", AT_FDCWD, argv[3], MOVE_MOUNT_F_EMPTY_PATH)) fail("move");
#ifdef SAFE
    read_mark(image, mark);
    if (look_at(argv[3]) == before) fail("measure");
#endif
    return 0;
}
