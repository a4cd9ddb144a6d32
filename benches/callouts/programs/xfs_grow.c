/* Makes the system calls that grow a mounted XFS volume with its image and its loop device:
 * xfs_grow IMAGE DEVICE DIR BYTES
 *
 * With -DSAFE, and the argument LOCK, also those that no driver may omit: it works in a process that can be left
 * behind if the kernel does not answer, holds a lock, checks whose file system it is, measures it through a
 * private mount, and durably marks the image before and after. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/mount.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

/* fs/xfs/libxfs/xfs_fs.h */
struct geometry {
    uint32_t blocksize, rtextsize, agblocks, agcount, logblocks, sectsize, inodesize, imaxpct;
    uint64_t datablocks, rtblocks, rtextents, logstart;
    unsigned char uuid[16];
    uint32_t sunit, swidth;
    int32_t version;
    uint32_t flags, logsectsize, rtsectsize, dirblocksize;
};
struct growth {
    uint64_t newblocks;
    uint32_t imaxpct;
};
#define XFS_IOC_FSGEOMETRY_V1 _IOR('X', 100, struct geometry)
#define XFS_IOC_FSGROWFSDATA _IOW('X', 110, struct growth)

#define MARK "trusted.flexvol"

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    uint64_t bytes = strtoull(argv[4], NULL, 10);
    int image = open(argv[1], O_RDWR | O_CLOEXEC), loop = open(argv[2], O_RDWR | O_CLOEXEC);
    int dir = open(argv[3], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
#ifdef SAFE
    int status;
    pid_t worker = fork();
    if (worker) return waitpid(worker, &status, 0) < 0 || status != 0;
    int lock = open(argv[5], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (flock(lock, LOCK_EX | LOCK_NB)) return perror("lock"), 1;
    static char mark[4096], superblock[4096] __attribute__((aligned(4096)));
    ssize_t length = fgetxattr(image, MARK, mark, sizeof mark);
    int direct = open(argv[2], O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (length < 0 || pread(direct, superblock, sizeof superblock, 0) < 0) return perror("read"), 1;
    int context = syscall(SYS_fsopen, "xfs", FSOPEN_CLOEXEC);
    syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "source", argv[2], 0);
    if (syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0)) return perror("create"), 1;
    int mount = syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    dir = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fsetxattr(image, MARK, mark, length, 0) || fsync(image)) return perror("mark"), 1;
#endif
    if (fallocate(image, FALLOC_FL_KEEP_SIZE, 0, bytes) || ftruncate(image, bytes) || fsync(image))
        return perror("extend"), 1;
    if (ioctl(loop, LOOP_SET_CAPACITY)) return perror("capacity"), 1;
    struct geometry geometry;
    if (ioctl(dir, XFS_IOC_FSGEOMETRY_V1, &geometry)) return perror("geometry"), 1;
    struct growth growth = {bytes / geometry.blocksize, geometry.imaxpct};
    if (ioctl(dir, XFS_IOC_FSGROWFSDATA, &growth)) return perror("grow"), 1;
    if (syncfs(dir)) return perror("sync"), 1;
#ifdef SAFE
    if (ioctl(dir, XFS_IOC_FSGEOMETRY_V1, &geometry) || geometry.datablocks != growth.newblocks) return perror("measure"), 1;
    if (fsetxattr(image, MARK, mark, length, 0) || fsync(image)) return perror("mark"), 1;
#endif
    return 0;
}
