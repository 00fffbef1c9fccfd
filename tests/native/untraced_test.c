/* The file of a process without a ring: whole whatever it holds, gone once there is a ring. */
#define _GNU_SOURCE
#include "verify.h"

#include "profiler.h"

#include <dirent.h>
#include <sys/resource.h>

static char directory[] = "/tmp/ncclscope-untraced-test-XXXXXX";

static int files(void)
{
    int count = 0;
    DIR *folder = opendir(directory);
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void limit_files(rlim_t size)
{
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_FSIZE, &limit));
    limit.rlim_cur = size < limit.rlim_max ? size : limit.rlim_max;
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
}

static void read_page(const ns_untraced *untraced, char page[PAGE + 1])
{
    FILE *file = fopen(untraced->path, "rb");
    CHECK(file && fread(page, 1, PAGE + 1, file) == PAGE);
    fclose(file);
    page[PAGE] = 0;
    CHECK(page[0] == '{' && page[PAGE - 1] == '\n');
}

/* Each byte of the longest texts takes six. */
static void the_longest_reason_fits(void)
{
    char long_text[2000], page[PAGE + 1];
    ns_about about = {.rank = INT32_MAX, .world = INT32_MAX};
    ns_untraced untraced;
    memset(long_text, 0x80, sizeof long_text);
    long_text[sizeof long_text - 1] = 0;
    CHECK(!setenv("NCCLSCOPE_RUN", long_text, 1));
    ns_untraced_begin(&untraced, directory, &about);
    CHECK(untraced.file >= 0);
    read_page(&untraced, page);
    CHECK(strstr(page, "\"final\": false"));
    ns_untraced_keep(&untraced, long_text);
    read_page(&untraced, page);
    CHECK(strstr(page, "\"final\": true") && strstr(page, "\\u0080\"} "));
    CHECK(!unlink(untraced.path));
}

static void a_ring_leaves_nothing_else(void)
{
    ns_about about = {.rank = 1, .world = 2};
    ns_untraced untraced;
    ns_untraced_begin(&untraced, directory, &about);
    CHECK(files() == 1);
    ns_untraced_remove(&untraced);
    CHECK(files() == 0);
}

/* A file that may not be written kills the process that tries; so does a socket nobody reads. */
static void no_place_and_no_launcher_harm_nobody(void)
{
    static const char *const names[] = {"", "ncclscope-nobody-listens", NULL};
    ns_about about = {.rank = 1, .world = 2};
    char long_name[200];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    limit_files(PAGE - 1);
    for (int at = 0; at < 3; at++) {
        ns_untraced untraced;
        CHECK(!setenv("NCCLSCOPE_REPORTS", names[at] ? names[at] : long_name, 1));
        ns_untraced_begin(&untraced, directory, &about);
        CHECK(untraced.file < 0);
        ns_untraced_keep(&untraced, "no room");
        ns_untraced_begin(&untraced, directory, &about);
        ns_untraced_remove(&untraced);
    }
    limit_files(RLIM_INFINITY);
    CHECK(files() == 0);
}

int main(void)
{
    CHECK(mkdtemp(directory));
    the_longest_reason_fits();
    a_ring_leaves_nothing_else();
    no_place_and_no_launcher_harm_nobody();
    CHECK(!rmdir(directory));
    puts("ok");
    return 0;
}
