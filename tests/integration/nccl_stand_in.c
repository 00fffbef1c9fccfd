/* A stand-in for libnccl, for machines without a GPU: it moves no data and waits for nobody.
 *
 * The NCCLLibrary of vLLM and of SGLang loads it like the real one. Each function counts its calls, so that a
 * test can see that a call went through, and how often:
 *
 *     lib.nccl_stand_in_calls(b"ncclAllReduce")     how often it was called
 *     lib.nccl_stand_in_fail(b"ncclAllReduce")      it reports an error from now on
 *     lib.nccl_stand_in_fail(NULL)                  nothing does
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char internal[128];
} unique_id;

enum { FUNCTIONS = 32 };
static struct {
    const char *name;
    uint64_t calls;
} called[FUNCTIONS];
static const char *failing;
static char failing_name[64];

static int count(const char *name)
{
    for (int i = 0; i < FUNCTIONS; i++) {
        if (called[i].name == NULL || strcmp(called[i].name, name) == 0) {
            called[i].name = name;
            called[i].calls++;
            break;
        }
    }
    return failing != NULL && strcmp(failing, name) == 0 ? 3 : 0; /* 3: internal error */
}

uint64_t nccl_stand_in_calls(const char *name)
{
    for (int i = 0; i < FUNCTIONS && called[i].name != NULL; i++)
        if (strcmp(called[i].name, name) == 0)
            return called[i].calls;
    return 0;
}

void nccl_stand_in_fail(const char *name)
{
    failing = NULL;
    if (name != NULL) {
        strncpy(failing_name, name, sizeof failing_name - 1);
        failing = failing_name;
    }
}

const char *ncclGetErrorString(int result)
{
    return result == 0 ? "no error" : "failure asked for by the test";
}

int ncclGetVersion(int *version)
{
    *version = 22809;
    return count(__func__);
}

int ncclGetUniqueId(unique_id *id)
{
    static int made;
    int words[2] = {(int)getpid(), ++made};
    memset(id, 0x5a, sizeof *id);
    memcpy(id->internal, words, sizeof words);
    return count(__func__);
}

int ncclCommInitRank(void **comm, int size, unique_id id, int rank)
{
    static char handle;
    (void)size, (void)id, (void)rank;
    *comm = &handle;
    return count(__func__);
}

int ncclCommInitRankConfig(void **comm, int size, unique_id id, int rank, void *config)
{
    (void)config;
    ncclCommInitRank(comm, size, id, rank);
    return count(__func__);
}

int ncclCommWindowRegister(void *comm, void *buffer, size_t size, void **window, int flags)
{
    (void)comm, (void)size, (void)flags;
    *window = buffer;
    return count(__func__);
}

/* The rest takes arguments that make no difference to it. */
#define ACCEPT(name) \
    int name(void) { return count(__func__); }

ACCEPT(ncclAllGather)
ACCEPT(ncclAllReduce)
ACCEPT(ncclBroadcast)
ACCEPT(ncclCommAbort)
ACCEPT(ncclCommDestroy)
ACCEPT(ncclCommQueryProperties)
ACCEPT(ncclCommResume)
ACCEPT(ncclCommSuspend)
ACCEPT(ncclCommWindowDeregister)
ACCEPT(ncclGroupEnd)
ACCEPT(ncclGroupStart)
ACCEPT(ncclMemAlloc)
ACCEPT(ncclMemFree)
ACCEPT(ncclRecv)
ACCEPT(ncclReduce)
ACCEPT(ncclReduceScatter)
ACCEPT(ncclSend)
