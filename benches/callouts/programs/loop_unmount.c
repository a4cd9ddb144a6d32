/* Makes only the system calls that unmount a volume: loop_unmount DIR */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int dir = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || syncfs(dir) || close(dir)) return perror("sync"), 1;
    if (umount2(argv[1], UMOUNT_NOFOLLOW)) return perror("unmount"), 1;
    return 0;
}
