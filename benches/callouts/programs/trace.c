/* Prints the addresses of the code that a program runs, each once, in the order of their first use:
 * trace PROGRAM ARGUMENTS
 *
 * The executable must have a fixed address. Follows its child processes until they exec another program. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SPAN = 1 << 24 };

static char seen[SPAN];

static void note(pid_t process) {
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, process, NULL, &registers) || registers.rip >= SPAN || seen[registers.rip]) return;
    seen[registers.rip] = 1;
    printf("%llx\n", registers.rip);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    pid_t first = fork();
    if (first == 0) {
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < 3; fd++) dup2(null, fd);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execv(argv[1], argv + 1);
        _exit(127);
    }
    int status;
    waitpid(first, &status, 0);
    if (!WIFSTOPPED(status)) return 1;
    ptrace(PTRACE_SETOPTIONS, first, NULL, PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    note(first);
    ptrace(PTRACE_SINGLESTEP, first, NULL, NULL);
    for (pid_t process; (process = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) continue;
        int signal = WSTOPSIG(status), event = status >> 16;
        if (event == PTRACE_EVENT_EXEC) {
            ptrace(PTRACE_DETACH, process, NULL, NULL);
            continue;
        }
        if (signal == SIGTRAP) note(process);
        /* A new process starts with SIGSTOP. */
        if (signal == SIGTRAP || signal == SIGSTOP) signal = 0;
        ptrace(PTRACE_SINGLESTEP, process, NULL, signal);
    }
    return 0;
}
