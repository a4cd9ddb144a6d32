/* Makes the system calls that grow a mounted XFS volume with its image and its loop device:
 * xfs_grow IMAGE DEVICE DIR BYTES LOCK
 *
 * With -DSAFE also those that no driver may omit (safe.h): it measures the file system through a private mount, and
 * durably marks the image before and after. */
#include "safe.h"

/* fs/xfs/libxfs/xfs_fs.h */
struct growth {
    uint64_t newblocks;
    uint32_t imaxpct;
};
#define XFS_IOC_FSGROWFSDATA _IOW('X', 110, struct growth)

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    uint64_t bytes = strtoull(argv[4], NULL, 10);
    struct geometry geometry;
#ifdef SAFE
    static char mark[4096];
    work_in_child();
    lock(argv[5]);
#endif
    int image = open(argv[1], O_RDWR | O_CLOEXEC), loop = open(argv[2], O_RDWR | O_CLOEXEC);
#ifdef SAFE
    ssize_t length = read_mark(image, mark);
    examine_device(loop, image);
    look_at(argv[3]);
    read_superblock(argv[2]);
    int dir = measure(mount_privately("xfs", argv[2]), &geometry);
    if (fsetxattr(image, MARK, mark, length, 0) || fsync(image)) fail("mark");
#else
    int dir = open(argv[3], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
#endif
    if (fallocate(image, FALLOC_FL_KEEP_SIZE, 0, bytes) || ftruncate(image, bytes) || fsync(image)) fail("extend");
    if (ioctl(loop, LOOP_SET_CAPACITY)) fail("capacity");
    if (ioctl(dir, XFS_IOC_FSGEOMETRY_V1, &geometry)) fail("geometry");
    struct growth growth = {bytes / geometry.blocksize, geometry.imaxpct};
    if (ioctl(dir, XFS_IOC_FSGROWFSDATA, &growth)) fail("grow");
    if (syncfs(dir)) fail("sync");
#ifdef SAFE
    examine_device(loop, image);
    if (ioctl(dir, XFS_IOC_FSGEOMETRY_V1, &geometry) || geometry.datablocks != growth.newblocks) fail("measure");
    if (fsetxattr(image, MARK, mark, length, 0) || fsync(image)) fail("mark");
#endif
    return 0;
}
