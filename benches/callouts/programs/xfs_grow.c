/* The system calls of growing a mounted XFS volume with its image and its loop device:
 * xfs_grow IMAGE DEVICE DIR BYTES */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/loop.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
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

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    uint64_t bytes = strtoull(argv[4], NULL, 10);
    int image = open(argv[1], O_RDWR | O_CLOEXEC), loop = open(argv[2], O_RDWR | O_CLOEXEC);
    int dir = open(argv[3], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fallocate(image, FALLOC_FL_KEEP_SIZE, 0, bytes) || ftruncate(image, bytes) || fsync(image))
        return perror("extend"), 1;
    if (ioctl(loop, LOOP_SET_CAPACITY)) return perror("capacity"), 1;
    struct geometry geometry;
    if (ioctl(dir, XFS_IOC_FSGEOMETRY_V1, &geometry)) return perror("geometry"), 1;
    struct growth growth = {bytes / geometry.blocksize, geometry.imaxpct};
    if (ioctl(dir, XFS_IOC_FSGROWFSDATA, &growth)) return perror("grow"), 1;
    return syncfs(dir) != 0;
}
