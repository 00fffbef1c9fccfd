/* Read a ring's file without the core, and check all that is stored in it the slow way: byte by byte,
 * by the words of ncclscope/ring/layout.py. */
#ifndef VERIFY_H
#define VERIFY_H

#include "ring.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { PAGE = 4096, COMMS = 8192, MOST_TEXTS = 32768 };

typedef struct text {
    unsigned kind;
    uint32_t length;
    const char *data; /* not terminated */
} text;

typedef struct ring_file {
    const unsigned char *data;
    size_t size;
    uint64_t capacity, strings, heap, table, marks, mark_count, carried, records;
    uint64_t position, reused;
    uint64_t wrap;     /* slots that are used */
    uint64_t reserved;       /* bytes that the file takes */
    size_t text_count;
    text *texts;
} ring_file;

static inline uint64_t get_word(const unsigned char *from, int size)
{
    uint64_t value = 0;
    for (int at = size - 1; at >= 0; at--)
        value = value << 8 | from[at];
    return value;
}

/* The upper half of the sum of all bytes, each multiplied by its place's share of a factor. */
static inline uint32_t slow_check(const unsigned char *entry, int size, int state)
{
    static const uint64_t factors[] = {
        0xF4B0BF2BEC31C3C5, 0x20CB422372699E39, 0x97589B0FE3B7FF85, 0xCDA49E49041F8DA3,
        0x114F6E4CDC478947, 0xDCD330BEF31A7C39, 0xB458B3A40CC8F329, 0xF330002EC698E72F,
        0xDE498A165B23033D, 0x51E6CF165F5883A1, 0x8FCB3C68960D9AE3, 0x2FEADF1E1DE92951,
    };
    uint64_t sum = 0;
    for (int at = 0; at < size - 4; at++)
        if (at != state)
            sum += entry[at] * (factors[at / 8] << at % 8 * 8);
    return (uint32_t)(sum >> 32);
}

static inline uint32_t slow_crc(uint32_t start, const void *data, size_t length)
{
    const unsigned char *bytes = data;
    uint32_t crc = ~start;
    for (size_t at = 0; at < length; at++) {
        crc ^= bytes[at];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320 : crc >> 1;
    }
    return ~crc;
}

static inline bool is_sealed(const unsigned char *entry, int size, int state)
{
    return get_word(entry + size - 4, 4) == slow_check(entry, size, state);
}

static inline const unsigned char *record_at(const ring_file *file, uint64_t position)
{
    return file->data + file->records + position % file->wrap * 96;
}

static inline const unsigned char *table_entry(const ring_file *file, int half, uint32_t comm)
{
    return file->data + file->table + ((uint64_t)half * COMMS + comm - 1) * 32;
}

static inline uint64_t up(uint64_t size)
{
    return (size + PAGE - 1) / PAGE * PAGE;
}

static inline void read_texts(ring_file *file)
{
    uint64_t at = file->strings, end = at + get_word(file->data + 128, 8);
    CHECK(!memcmp(file->data + at, file->data + (at + file->heap) / 2, end - at));
    unsigned counts[9] = {0};
    file->texts = calloc(MOST_TEXTS, sizeof *file->texts);
    CHECK(file->texts && end <= file->heap);
    while (at < end) {
        const unsigned char *head = file->data + at;
        uint32_t word = (uint32_t)get_word(head, 4), length = word & 0xFFFFFF, kind = word >> 24;
        CHECK(file->text_count < MOST_TEXTS && kind >= 1 && kind <= 8);
        CHECK(get_word(head + 4, 4) == slow_crc(kind << 24 ^ ++counts[kind], head + 8, length));
        file->texts[file->text_count++] = (text){kind, length, (const char *)head + 8};
        at += (8 + length + 7) / 8 * 8;
    }
    CHECK(at == end);
}

/* Read a file that nobody writes now, and check each thing in it. It is not mapped, as the first look
 * at a hole of a mapped file takes a page of it. */
static inline ring_file verify(const char *path)
{
    ring_file file = {0};
    struct stat about;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(descriptor >= 0 && !fstat(descriptor, &about));
    file.size = (size_t)about.st_size;
    file.reserved = (uint64_t)about.st_blocks * 512;
    unsigned char *data = malloc(file.size);
    CHECK(data && read(descriptor, data, file.size) == about.st_size);
    close(descriptor);
    file.data = data;
    CHECK(!memcmp(data, "ncclring", 8) && get_word(data + 8, 4) == 3 && get_word(data + 12, 4) == 96);
    CHECK(get_word(data + 88, 4) == slow_crc(0, data, 88));
    CHECK(get_word(data + 56, 8) == COMMS);
    uint64_t mirror = PAGE + up(2 * get_word(data + 24, 8));
    file.capacity = get_word(data + 16, 8);
    file.strings = mirror + PAGE;
    file.heap = file.strings + 2 * up(get_word(data + 32, 8));
    file.table = file.heap + up(get_word(data + 40, 8));
    file.marks = file.table + 2 * COMMS * 32;
    file.mark_count = get_word(data + 48, 8);
    file.carried = file.marks + up(file.mark_count * 32);
    file.records = file.carried + COMMS * 8;
    CHECK(file.records + up(file.capacity * 96) + 2 * up(get_word(data + 64, 8))
              + up(get_word(data + 72, 8)) == file.size);
    CHECK(mirror == 5 * PAGE && !memcmp(data, data + mirror, 92));
    for (int word = 128; word < 216; word += word == 184 ? 24 : 8) {
        CHECK(get_word(data + word, 8) == ~get_word(data + word + 1024, 8));
        CHECK(get_word(data + word, 8) == get_word(data + mirror + word, 8));
        CHECK(get_word(data + word, 8) == ~get_word(data + mirror + word + 1024, 8));
    }
    file.reused = get_word(data + 208, 8);
    uint64_t described = get_word(data + 152, 8), size = get_word(data + 24, 8);
    CHECK(described && get_word(data + PAGE, 8) == described);
    CHECK(!memcmp(data + PAGE, data + PAGE + size, 20 + get_word(data + PAGE + 8, 4)));
    file.position = get_word(data + 192, 8);
    CHECK(get_word(data + 200, 8) == ~file.position);
    file.wrap = get_word(data + 168, 8) ? get_word(data + 168, 8) : file.capacity;
    uint64_t kept = file.position < file.wrap ? file.position : file.wrap, time = 0;
    for (uint64_t at = file.position - kept; at < file.position; at++) {
        const unsigned char *record = record_at(&file, at);
        CHECK(get_word(record, 8) == at + 1 && get_word(record + 88, 4) == (uint32_t)(at + 1));
        CHECK(record[87] == 0x0F || record[87] == 0x33 || record[87] == 0x55);
        CHECK(is_sealed(record, 96, 87));
        CHECK(get_word(record + 8, 8) >= time);
        time = get_word(record + 8, 8);
    }
    read_texts(&file);
    return file;
}

/* Check those tables and marks that are in use; returns the number of entries. */
static inline int verify_entries(const ring_file *file)
{
    int found = 0;
    for (uint64_t at = file->table; at < file->carried; at += 32)
        if (get_word(file->data + at, 8)) {
            CHECK(is_sealed(file->data + at, 32, -1));
            CHECK(at < file->marks || get_word(file->data + at + 24, 4) > 0);
            found++;
        }
    for (uint64_t at = file->carried; at < file->records; at += 8) {
        uint32_t count = (uint32_t)get_word(file->data + at, 4);
        CHECK(get_word(file->data + at, 8) == 0 || get_word(file->data + at + 4, 4) == (uint32_t)~count);
    }
    return found;
}

/* Return the `number`th text of a kind, from 1; it must exist. */
static inline text text_of(const ring_file *file, unsigned kind, uint32_t number)
{
    for (size_t at = 0; at < file->text_count; at++)
        if (file->texts[at].kind == kind && --number == 0)
            return file->texts[at];
    CHECK(!"the text exists");
    return (text){0};
}

static inline bool says(text of, const char *words)
{
    return memmem(of.data, of.length, words, strlen(words)) != NULL;
}

static inline void release(ring_file *file)
{
    free((void *)(uintptr_t)file->data);
    free(file->texts);
}

static inline ns_ring *new_ring_in(const char *directory, uint64_t capacity)
{
    char reason[NS_REASON];
    ns_ring *ring = ns_ring_create(directory, capacity, reason);
    CHECK(ring);
    CHECK(ns_describe(ring, "{}", 2));
    ns_ring_publish(ring);
    return ring;
}

#endif
