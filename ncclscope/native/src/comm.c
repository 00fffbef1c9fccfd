/* Communicators: their texts, their numbers, and who takes over a number. */
#include "inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* As layout.COMM_ROOM, and bytes that a successor needs for its own text besides. */
enum { COMM_ROOM = 64, SINCE = 32 };

static uint64_t padded(uint64_t length)
{
    return (length + COMM_ROOM - 1) / COMM_ROOM * COMM_ROOM;
}

static ns_opened *opened(ns_channel *channel)
{
    return (ns_opened *)(void *)channel; /* its first member */
}

uint32_t ns_index(const ns_channel *channel)
{
    return __atomic_load_n(&channel->index, __ATOMIC_RELAXED);
}

static void set_index(ns_opened *of, uint32_t index)
{
    __atomic_store_n(&of->channel.index, index, __ATOMIC_RELAXED);
}

/* --- numbers ------------------------------------------------------------------------------------ */

static void unlink_closed(ns_ring *ring, ns_opened **link)
{
    ns_opened *gone = *link;
    *link = gone->next;
    if (ring->last_closed == &gone->next)
        ring->last_closed = link;
    gone->next = NULL;
}

/* Take the channel out of the queue that was closed first and whose text has room; NULL if none. */
static ns_opened *take_closed(ns_ring *ring, uint64_t length)
{
    ns_opened **link = &ring->closed;
    while (*link && (*link)->text.length < length)
        link = &(*link)->next;
    ns_opened *found = *link;
    if (found)
        unlink_closed(ring, link);
    return found;
}

/* Keep a channel that has no number: its user may still record calls. */
static void retire(ns_ring *ring, ns_opened *of)
{
    set_index(of, 0);
    of->next = ring->retired;
    ring->retired = of;
}

/* Give a channel a number that none has had; false without room. */
static bool begin(ns_ring *ring, ns_opened *made, const char *json, size_t length, uint64_t whole)
{
    uint32_t number = ring->channel_count + 1;
    if (number > NS_MAX_COMMS || !ns_room_comm(ring, number)
        || !ns_append(ring, NS_COMM, json, length, whole, &made->text))
        return false;
    set_index(made, number);
    ring->channels[ring->channel_count++] = made;
    ns_write_channel(ring, ring->tables % 2, &made->channel);
    return true;
}

/* Give a channel the number of one that is closed, and its entries. */
static void succeed(ns_ring *ring, ns_opened *made, ns_opened *old, const char *json, size_t length)
{
    uint32_t number = old->channel.index;
    char since[SINCE];
    retire(ring, old);
    made->text = old->text;
    made->updates = old->updates;
    made->update_count = old->update_count;
    old->updates = NULL;
    for (size_t at = 0; at < made->update_count; at++)
        ns_overwrite(ring, NS_COMM_UPDATE, &made->updates[at], "{}", 2, "");
    ns_put_word(ring, NS_REUSED, ++ring->reused);
    snprintf(since, sizeof since, ", \"since\": %" PRIu64 "}", ring->position);
    ns_overwrite(ring, NS_COMM, &made->text, json, length - 1, since);
    set_index(made, number);
    ring->channels[number - 1] = made;
    for (uint64_t half = 0; half < 2; half++)
        ns_write_channel(ring, half, &made->channel);
    ns_publish64(ring->file + ring->geometry.carried + (uint64_t)(number - 1) * NS_CARRIED, 0);
}

ns_channel *ns_channel_open(ns_ring *ring, const char *json, size_t length, uint32_t members)
{
    ns_opened *made = calloc(1, sizeof *made), *old = NULL;
    if (!made)
        return NULL;
    made->channel.ring = ring;
    made->channel.members = members;
    uint64_t whole = padded((uint64_t)length + SINCE);
    bool fits = length && json[length - 1] == '}'; /* `since` goes before it */
    pthread_mutex_lock(&ring->lock);
    if (ring->detached)
        made->channel.index = 1;
    else if (fits && ring->channel_count >= NS_REUSED_FROM && (old = take_closed(ring, whole)))
        succeed(ring, made, old, json, length);
    else if (!begin(ring, made, json, length, whole)) {
        if (fits && (old = take_closed(ring, whole)))
            succeed(ring, made, old, json, length);
        else
            retire(ring, made);
    }
    pthread_mutex_unlock(&ring->lock);
    return &made->channel;
}

void ns_channel_close(ns_channel *channel)
{
    ns_ring *ring = channel->ring;
    ns_opened *own = opened(channel);
    pthread_mutex_lock(&ring->lock);
    if (!own->closed && channel->index && !ring->detached) {
        own->closed = true;
        *ring->last_closed = own;
        ring->last_closed = &own->next;
    }
    pthread_mutex_unlock(&ring->lock);
}

void ns_channel_reopen(ns_channel *channel)
{
    ns_ring *ring = channel->ring;
    ns_opened *own = opened(channel);
    pthread_mutex_lock(&ring->lock);
    if (own->closed && channel->index && !ring->detached) {
        ns_opened **link = &ring->closed;
        while (*link && *link != own)
            link = &(*link)->next;
        if (*link)
            unlink_closed(ring, link);
        own->closed = false;
    }
    pthread_mutex_unlock(&ring->lock);
}

/* --- updates ------------------------------------------------------------------------------------ */

/* Whether a text is what the newest update of a channel says. Both are whole JSON objects. */
static bool is_newest(const ns_ring *ring, const ns_opened *of, const char *json, size_t length)
{
    if (!of->update_next)
        return false;
    const ns_entry *newest = &of->updates[of->update_next - 1];
    const unsigned char *data =
        ring->file + ring->geometry.strings + newest->offset + NS_TEXT_HEAD;
    return length <= newest->length && memcmp(data, json, length) == 0;
}

static void update(ns_ring *ring, ns_opened *of, const char *json, size_t length)
{
    uint64_t whole = padded(length);
    size_t at = of->update_next;
    if (is_newest(ring, of, json, length))
        return;
    while (at < of->update_count && of->updates[at].length < whole)
        at++;
    if (at < of->update_count) {
        ns_overwrite(ring, NS_COMM_UPDATE, &of->updates[at], json, length, "");
    } else {
        ns_entry *more = realloc(of->updates, (at + 1) * sizeof *more);
        if (!more)
            return;
        of->updates = more;
        if (!ns_append(ring, NS_COMM_UPDATE, json, length, whole, &more[at]))
            return;
        of->update_count++;
    }
    of->update_next = at + 1;
}

void ns_channel_update(ns_channel *channel, const char *json, size_t length)
{
    ns_ring *ring = channel->ring;
    pthread_mutex_lock(&ring->lock);
    if (ring->detached)
        ring->refused++;
    else if (channel->index) /* the number that the text says, unless another one has it now */
        update(ring, opened(channel), json, length);
    pthread_mutex_unlock(&ring->lock);
}
