/* A program that uses NCCL and no Python: reads commands from its input, one a line, and answers
 * each with a number. Beside those of the stand-in for libnccl it knows
 *
 *     threads N COUNT C   N threads make COUNT all_reduces each, on communicators C, C + 1, ...
 *     background N COUNT C   the same, and go on while they run
 *     fork                the lines up to `parent` are for a child, whose end is awaited
 *     kill                end as by the OOM killer
 *     repeat N LINE       a command N times, with `%d` in it replaced by 0, 1, ...
 *     sleep MS
 *     exit STATUS */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int stand_in(const char *line);

enum { LINE = 8192, MOST_THREADS = 64 };

struct work {
    int comm, count;
};

static void *work_of(void *given)
{
    const struct work *work = given;
    char line[128];
    for (int at = 0; at < work->count; at++) {
        snprintf(line, sizeof line, "call %d AllReduce %d ncclFloat32 0", work->comm, at % 100 + 1);
        stand_in(line);
    }
    return NULL;
}

static void threads(int count, int calls, int comm, int wait)
{
    pthread_t started[MOST_THREADS];
    static struct work works[MOST_THREADS]; /* threads may outlive this call */
    count = count < MOST_THREADS ? count : MOST_THREADS;
    for (int at = 0; at < count; at++) {
        works[at] = (struct work){comm + at, calls};
        pthread_create(&started[at], NULL, work_of, &works[at]);
    }
    for (int at = 0; at < count && wait; at++)
        pthread_join(started[at], NULL);
}

static void repeat(int count, const char *command)
{
    char line[LINE], number[16];
    const char *place = strstr(command, "%d");
    for (int at = 0; at < count; at++) {
        snprintf(number, sizeof number, "%d", at);
        if (place == NULL)
            snprintf(line, sizeof line, "%s", command);
        else
            snprintf(line, sizeof line, "%.*s%s%s", (int)(place - command), command, number,
                     place + 2);
        stand_in(line);
    }
}

int main(void)
{
    char line[LINE];
    int a, b, c, answer = 0;
    setvbuf(stdin, NULL, _IONBF, 0); /* a child takes its lines out of the pipe, and no more */
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "threads %d %d %d", &a, &b, &c) == 3) {
            threads(a, b, c, 1);
        } else if (sscanf(line, "background %d %d %d", &a, &b, &c) == 3) {
            threads(a, b, c, 0);
        } else if (strncmp(line, "fork", 4) == 0) {
            pid_t child = fork();
            if (child > 0)
                waitpid(child, &answer, 0);
        } else if (strncmp(line, "parent", 6) == 0) {
            exit(0);
        } else if (strncmp(line, "kill", 4) == 0) {
            kill(getpid(), SIGKILL);
        } else if (sscanf(line, "repeat %d %n", &a, &b) == 1) {
            repeat(a, line + b);
        } else if (sscanf(line, "sleep %d", &a) == 1) {
            usleep((useconds_t)a * 1000);
        } else if (sscanf(line, "exit %d", &a) == 1) {
            exit(a);
        } else {
            answer = stand_in(line);
        }
        printf("%d\n", answer);
        fflush(stdout);
    }
    return 0;
}
