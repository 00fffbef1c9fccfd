/* Say that this process is not recorded, as ncclscope/ring/tombstone.py does and in its format.
 *
 * The page is reserved before the ring is made, so that the reason can be written even where the
 * file system is full. Where no place takes a page, it goes to the launcher over a socket. Nothing
 * here allocates or waits, and what fails is left out: the program goes on. */
#define _GNU_SOURCE
#include "profiler.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char UNFINISHED[] =
    "its ring was not finished: the process ended, or was stopped, while it made one";

/* Fill a page: the object, then blanks. */
static void spell(const ns_about *about, const char *why, bool final, char page[NS_PAGE])
{
    size_t length = ns_untraced_json(about, why, final, page, NS_PAGE);
    memset(page + length, ' ', NS_PAGE - length);
    page[NS_PAGE - 1] = '\n';
}

static void store(const ns_untraced *untraced, const char *why, bool final)
{
    char page[NS_PAGE];
    spell(untraced->about, why, final, page);
    while (pwrite(untraced->file, page, sizeof page, 0) < 0 && errno == EINTR)
        ;
}

static void report(const ns_about *about, const char *why)
{
    char page[NS_PAGE];
    struct sockaddr_un to = {.sun_family = AF_UNIX}; /* abstract: its name begins with a zero */
    const char *name = ns_variable("REPORTS");
    size_t length = strlen(name);
    if (length == 0 || length >= sizeof to.sun_path)
        return;
    int end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (end < 0)
        return;
    memcpy(to.sun_path + 1, name, length);
    spell(about, why, true, page);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    if (connect(end, (const struct sockaddr *)&to, size) == 0)
        (void)!send(end, page, sizeof page, MSG_NOSIGNAL);
    close(end);
}

void ns_untraced_begin(ns_untraced *untraced, const char *directory, const ns_about *about)
{
    static const ns_range all = {0, NS_PAGE};
    static const ns_size size = {NS_PAGE, 0, &all, 1};
    char asked[NS_FOLDER], place[NS_FOLDER];
    untraced->about = about;
    untraced->file = -1;
    untraced->path[0] = untraced->pointer[0] = 0;
    if (!ns_may_write(NS_PAGE))
        return;
    ns_place(directory, 0, asked);
    for (int number = 0; untraced->file < 0 && number < NS_PLACES; number++) {
        if (!ns_place(directory, number, place))
            continue;
        untraced->file = ns_new_file(place, ".untraced", &size, untraced->path);
        if (untraced->file >= 0 && number > 0)
            ns_leave_pointer(asked, untraced->path, untraced->pointer);
    }
    if (untraced->file >= 0)
        store(untraced, UNFINISHED, false);
}

void ns_untraced_keep(ns_untraced *untraced, const char *why)
{
    if (untraced->file < 0) {
        report(untraced->about, why);
        return;
    }
    store(untraced, why, true);
    close(untraced->file);
}

void ns_untraced_remove(ns_untraced *untraced)
{
    if (untraced->file < 0)
        return;
    close(untraced->file);
    unlink(untraced->path);
    if (*untraced->pointer)
        unlink(untraced->pointer);
}
