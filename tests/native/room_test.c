/* Rings that grow on a small file system, until it is full and beyond. It skips where this user may
 * not mount one. */
#define _GNU_SOURCE
#include "verify.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { CAPACITY = 65536, SKIPPED = 77, LEAST_ROOM = 1024 };

static char directory[] = "/tmp/ncclscope-room-test-XXXXXX";
static char stuffing[64], rings[64];

/* Mount a file system of `size` in a namespace of our own; its first call may skip. */
static void mount_small(const char *size)
{
    char options[64];
    snprintf(options, sizeof options, "size=%s", size);
    if (mount("none", directory, "tmpfs", 0, options)) {
        printf("skipped: no file system can be mounted (%s)\n", strerror(errno));
        rmdir(directory);
        exit(SKIPPED);
    }
}

static void unmount(void)
{
    CHECK(!umount2(directory, MNT_DETACH)); /* the rings stay mapped */
}

static uint64_t free_pages(void)
{
    struct statvfs system;
    CHECK(!statvfs(directory, &system));
    return system.f_bfree * system.f_frsize / PAGE;
}

/* Fill the file system except for some pages. */
static void leave_free(uint64_t left)
{
    int file = open(stuffing, O_WRONLY | O_CREAT | O_APPEND, 0600);
    static char page[PAGE];
    CHECK(file >= 0);
    while (free_pages() > left)
        CHECK(write(file, page, PAGE) == PAGE);
    close(file);
}

static void make_free(void)
{
    CHECK(!unlink(stuffing));
}

static ns_channel *open_one(ns_ring *ring, int number)
{
    char json[64];
    int length = snprintf(json, sizeof json, "{\"key\": \"k%d\"}", number);
    return ns_channel_open(ring, json, (size_t)length, 1);
}

static void post_many(ns_channel *channel, int count)
{
    ns_call call = {.numel = 1, .ndim = 255, .root = -1, .comm = (uint16_t)ns_index(channel)};
    for (int at = 0; at < count; at++) {
        int64_t position = ns_post(channel, &call, 3, 0, 0, 0, 0);
        ns_advance(channel->ring, position, 2);
    }
}

/* Let the kernel answer as one before 5.14, which cannot reserve pages of a map; false if it cannot. */
static bool pretend_to_be_old(void)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 23, 0, 1), /* MADV_POPULATE_WRITE */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
           && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

/* On an old kernel all is reserved at first. */
static void old_kernels_reserve_all(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        if (!pretend_to_be_old())
            exit(0);
        ns_ring *ring = new_ring_in(directory, 4096);
        ring_file file = verify(ns_ring_path(ring));
        CHECK(file.reserved >= file.size);
        release(&file);
        for (int at = 0; at < 1000; at++)
            post_many(open_one(ring, at), 10);
        file = verify(ns_ring_path(ring));
        CHECK(file.wrap == 4096 && file.position == 10000);
        verify_entries(&file);
        unlink(ns_ring_path(ring));
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void small_at_first_and_grows(void)
{
    mount_small("16m");
    ns_ring *ring = new_ring_in(rings, CAPACITY);
    ring_file file = verify(ns_ring_path(ring));
    CHECK(!strncmp(ns_ring_path(ring), directory, strlen(directory)));
    CHECK(file.size > 10 << 20 && file.reserved < 384 << 10);
    uint64_t before = file.reserved;
    release(&file);
    post_many(open_one(ring, 0), LEAST_ROOM / 2);
    file = verify(ns_ring_path(ring));
    CHECK(file.reserved == before);
    release(&file);
    post_many(open_one(ring, 1), 3 * CAPACITY / 2);
    file = verify(ns_ring_path(ring));
    CHECK(file.wrap == CAPACITY && file.reserved >= before + (CAPACITY - LEAST_ROOM) * 96);
    CHECK(file.reserved <= before + up(CAPACITY * 96));
    verify_entries(&file);
    release(&file);
    unmount();
}

static void full_and_wraps(void)
{
    mount_small("1m");
    ns_ring *ring = new_ring_in(rings, CAPACITY);
    ns_channel *channel = open_one(ring, 0);
    leave_free(30);
    post_many(channel, 1500); /* 24 pages more, and no 48 */
    ring_file file = verify(ns_ring_path(ring));
    CHECK(file.wrap == CAPACITY);
    release(&file);
    post_many(channel, 4000);
    file = verify(ns_ring_path(ring));
    CHECK(file.wrap == 2 * LEAST_ROOM && file.position == 5500);
    verify_entries(&file);
    release(&file);
    ns_call call = {.ndim = 255, .root = -1, .comm = 1, .fixed = NS_FIXED_P2P};
    int64_t newest = ns_post_p2p(channel, &call, 0, 0, 1, 0);
    ns_set_peer(ring, newest, 1);
    ns_set_peer(ring, newest - 2 * LEAST_ROOM, 7); /* is overwritten */
    ns_advance(ring, newest, 1);
    CHECK(ns_withdraw(channel, newest));
    make_free();
    post_many(channel, 5000); /* it never grows again: slots have been used twice */
    file = verify(ns_ring_path(ring));
    CHECK(file.wrap == 2 * LEAST_ROOM && file.position == 10501);
    CHECK(channel->seq == 10500);
    verify_entries(&file);
    release(&file);
    unmount();
}

static void no_room_is_an_answer(void)
{
    mount_small("1m");
    ns_ring *ring = new_ring_in(rings, CAPACITY);
    char text[1000];
    int64_t sizes[] = {1, 2};
    leave_free(0);
    CHECK(!ns_sizes(ring, sizes, 2) && ns_sizes_of(ring, 1, NULL, 0) == -1);
    int made = 0, opened = 0;
    memset(text, 'x', sizeof text);
    while (snprintf(text, 9, "%08d", made) && ns_text(ring, 2, text, sizeof text))
        made++;
    CHECK(made == 16 * PAGE / 1008);
    ns_channel *none = NULL;
    do
        CHECK((none = open_one(ring, opened)));
    while (ns_index(none) && ++opened < 1000);
    CHECK(ns_index(none) == 0 && opened < 128); /* their texts have no room */
    post_many(none, 10);
    make_free();
    CHECK(ns_text(ring, 2, text, sizeof text) == (uint32_t)made + 1);
    uint32_t place = ns_sizes(ring, sizes, 2);
    int64_t found[2];
    CHECK(place && ns_sizes_of(ring, place, found, 2) == 2 && found[0] == 1 && found[1] == 2);
    while (opened < 128) {
        none = open_one(ring, opened);
        CHECK(ns_index(none) == (uint32_t)++opened);
    }
    leave_free(1); /* the table has two halves */
    none = open_one(ring, opened);
    CHECK(ns_index(none) == 0);
    make_free();
    none = open_one(ring, opened);
    CHECK(ns_index(none) == 129); /* the number that no other got */
    post_many(none, 10);
    while (++opened < 512)
        CHECK(ns_index(open_one(ring, opened)) == (uint32_t)opened + 1);
    leave_free(2);
    none = open_one(ring, opened);
    ns_carried(none);
    CHECK(ns_index(none) == 0); /* calls that NCCL reports are counted elsewhere than the calls */
    make_free();
    none = open_one(ring, opened);
    ns_carried(none);
    CHECK(ns_index(none) == 513);
    ns_finish(ring);
    ring_file file = verify(ns_ring_path(ring));
    verify_entries(&file);
    release(&file);
    unmount();
}

static void goes_elsewhere(void)
{
    char pointer[4096], named[4096] = "";
    mount_small("300k");
    ns_ring *ring = new_ring_in(rings, CAPACITY);
    const char *path = ns_ring_path(ring);
    CHECK(!strncmp(path, "/dev/shm/ncclscope-", 19));
    snprintf(pointer, sizeof pointer, "%s%s.moved", rings, strrchr(path, '/'));
    FILE *file = fopen(pointer, "r");
    CHECK(file && fgets(named, sizeof named, file) && !strncmp(named, path, strlen(path)));
    fclose(file);
    unlink(path);
    snprintf(pointer, sizeof pointer, "%s", path);
    *strrchr(pointer, '/') = 0;
    rmdir(pointer);
    unmount();
}

int main(void)
{
    CHECK(mkdtemp(directory));
    snprintf(stuffing, sizeof stuffing, "%s/stuffing", directory);
    snprintf(rings, sizeof rings, "%s/rings", directory);
    old_kernels_reserve_all();
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
        printf("skipped: no namespace of our own (%s)\n", strerror(errno));
        rmdir(directory);
        return SKIPPED;
    }
    small_at_first_and_grows();
    full_and_wraps();
    no_room_is_an_answer();
    goes_elsewhere();
    rmdir(directory);
    return 0;
}
