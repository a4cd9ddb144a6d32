/* Runs programs alternately and prints the cost of each run: spawn ROUNDS <LIST
 *
 * A line of the list has a label, a program and its arguments, separated by tabs. Arguments may be
 * empty. Every round runs all lines in order, so that disturbances affect them alike. Programs get
 * an empty environment and /dev/null. Prints a line for each run: label, CPU time in microseconds,
 * elapsed microseconds, page faults, peak memory in KiB, exit status. This program is small and
 * static, because a child's peak includes its parent's memory until exec. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINES = 4096, ARGUMENTS = 16 };

static char *commands[LINES][ARGUMENTS + 2];

static long microseconds(struct timeval t) { return t.tv_sec * 1000000L + t.tv_usec; }

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

static int read_list(void) {
    char *line = NULL;
    size_t room = 0;
    int count = 0;
    for (ssize_t length; (length = getline(&line, &room, stdin)) > 0; count++) {
        if (count == LINES) exit(2);
        line[length - 1] = 0;
        char *rest = strdup(line);
        for (int at = 0; rest; at++) {
            if (at > ARGUMENTS) exit(2);
            commands[count][at] = strsep(&rest, "\t");
        }
    }
    return count;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int rounds = atoi(argv[1]), count = read_list();
    int null = open("/dev/null", O_RDWR), report = dup(1);
    FILE *out = fdopen(report, "w");
    fcntl(report, F_SETFD, FD_CLOEXEC);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    close(null);
    if (chdir("/")) return 2;
    for (int round = 0; round < rounds; round++)
        for (int at = 0; at < count; at++) {
            char **command = commands[at], *none[] = {NULL};
            struct rusage used;
            int status;
            long started = now();
            pid_t child = vfork();
            if (child == 0) {
                execve(command[1], command + 1, none);
                _exit(127);
            }
            wait4(child, &status, 0, &used);
            fprintf(out, "%s %ld %ld %ld %ld %d\n", command[0], microseconds(used.ru_utime) + microseconds(used.ru_stime),
                    now() - started, used.ru_minflt, used.ru_maxrss, status);
        }
    return fclose(out) != 0;
}
