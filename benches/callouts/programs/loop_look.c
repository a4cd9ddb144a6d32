/* Makes the system calls that no driver may omit before it says that a volume is mounted and has its size:
 * loop_look IMAGE FILESYSTEM DEVICE DIR LOCK */
#include "safe.h"

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    static char mark[4096];
    struct geometry geometry;
    struct stat found;
    work_in_child();
    lock(argv[5]);
    int image = open(argv[1], O_RDONLY | O_CLOEXEC), loop = open(argv[3], O_RDONLY | O_CLOEXEC);
    read_mark(image, mark);
    examine_device(loop, image);
    if (fstat(loop, &found) || look_at(argv[4]) != found.st_rdev) fail("look");
    read_superblock(argv[3]);
    measure(mount_privately(argv[2], argv[3]), &geometry);
    return 0;
}
