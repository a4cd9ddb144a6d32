/* Makes only the system calls that mount a volume's image:
 * loop_mount IMAGE FILESYSTEM DIR */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/mount.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int image = open(argv[1], O_RDWR | O_CLOEXEC);
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    char device[32];
    snprintf(device, sizeof device, "/dev/loop%d", ioctl(control, LOOP_CTL_GET_FREE));
    int loop = open(device, O_RDWR | O_CLOEXEC);
    struct loop_config config;
    memset(&config, 0, sizeof config);
    config.fd = image;
    config.block_size = 512;
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    if (image < 0 || ioctl(loop, LOOP_CONFIGURE, &config)) return perror("attach"), 1;
    int context = syscall(SYS_fsopen, argv[2], FSOPEN_CLOEXEC);
    syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "source", device, 0);
    if (syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0)) return perror("create"), 1;
    int mount = syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (syscall(SYS_move_mount, mount, "", AT_FDCWD, argv[3], MOVE_MOUNT_F_EMPTY_PATH)) return perror("move"), 1;
    return 0;
}
