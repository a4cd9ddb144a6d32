/* What no driver may omit, for the programs that are built with -DSAFE: the work is done in a process that can be left
 * behind if the kernel does not answer; a lock keeps others away, and tells who has it; the image's mark is read; the
 * device's first block is read past the page cache; the file system is measured through a private mount. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <linux/mount.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define MARK "trusted.flexvol"

/* fs/xfs/libxfs/xfs_fs.h */
struct geometry {
    uint32_t blocksize, rtextsize, agblocks, agcount, logblocks, sectsize, inodesize, imaxpct;
    uint64_t datablocks, rtblocks, rtextents, logstart;
    unsigned char uuid[16];
    uint32_t sunit, swidth;
    int32_t version;
    uint32_t flags, logsectsize, rtsectsize, dirblocksize;
};
#define XFS_IOC_FSGEOMETRY_V1 _IOR('X', 100, struct geometry)

static inline void fail(const char *what) {
    perror(what);
    exit(1);
}

/* Returns in a child process. Its parent ends with it. */
static inline void work_in_child(void) {
    int status;
    pid_t worker = fork();
    if (worker) exit(waitpid(worker, &status, 0) < 0 || status != 0);
}

static inline int lock(const char *path) {
    char process[4096];
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), own = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = read(own, process, sizeof process);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) || length < 0 || pwrite(lock, process, 32, 0) < 0) fail("lock");
    close(own);
    return lock;
}

/* Returns the length of the image's mark. */
static inline ssize_t read_mark(int image, char mark[4096]) {
    struct stat found;
    ssize_t length = fgetxattr(image, MARK, mark, 4096);
    if (fstat(image, &found) || length < 0) fail("mark");
    return length;
}

static inline void read_superblock(const char *device) {
    static char superblock[4096] __attribute__((aligned(4096)));
    int direct = open(device, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (pread(direct, superblock, sizeof superblock, 0) < 0) fail("read");
    close(direct);
}

/* Expects that the device has this image, and that of no other size. */
static inline void examine_device(int loop, int image) {
    struct loop_info64 info;
    struct stat found;
    uint64_t bytes;
    if (ioctl(loop, LOOP_GET_STATUS64, &info) || fstat(image, &found) || info.lo_inode != found.st_ino) fail("device");
    if (ioctl(loop, BLKGETSIZE64, &bytes) || bytes != (uint64_t)found.st_size) fail("size");
}

/* Returns a mount that only this process sees. */
static inline int mount_privately(const char *filesystem, const char *device) {
    int context = syscall(SYS_fsopen, filesystem, FSOPEN_CLOEXEC);
    syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "source", device, 0);
    if (syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0)) fail("create");
    return syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

/* Opens the private mount and measures the file system. */
static inline int measure(int mount, struct geometry *geometry) {
    int root = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || ioctl(root, XFS_IOC_FSGEOMETRY_V1, geometry)) fail("geometry");
    return root;
}

/* Looks at a pod's directory, without following a link. Returns the device that is mounted there. */
static inline dev_t look_at(const char *dir) {
    struct stat found;
    int open_dir = open(dir, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    if (open_dir < 0 || fstat(open_dir, &found) || close(open_dir)) fail("directory");
    return found.st_dev;
}
