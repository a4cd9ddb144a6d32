/* Makes the system calls that unmount a volume: loop_unmount DIR LOCK
 *
 * With -DSAFE also those that no driver may omit (safe.h): it asks the device whose image it has. */
#include "safe.h"
#include <sys/sysmacros.h>

/* include/linux/fs.h of the kernel */
#define UMOUNT_NOFOLLOW 8

int main(int argc, char **argv) {
    if (argc != 3) return 2;
#ifdef SAFE
    work_in_child();
    char device[32];
    struct loop_info64 info;
    dev_t mounted = look_at(argv[1]);
    snprintf(device, sizeof device, "/dev/loop%d", minor(mounted));
    int loop = open(device, O_RDONLY | O_CLOEXEC);
    if (ioctl(loop, LOOP_GET_STATUS64, &info)) fail("device");
    close(loop);
    lock(argv[2]);
    if (look_at(argv[1]) != mounted) fail("look");
#endif
    int dir = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || syncfs(dir) || close(dir)) fail("sync");
    if (syscall(SYS_umount2, argv[1], UMOUNT_NOFOLLOW)) fail("unmount");
#ifdef SAFE
    if (look_at(argv[1]) == mounted) fail("measure");
#endif
    return 0;
}
