#include "sign.h"

#include "ring.h"

#include <stdio.h>
#include <string.h>

/* BLAKE2b as RFC 7693 specifies it, without a key. */

static const uint64_t initial[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static const uint8_t order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

enum { BLOCK = 128, ROUNDS = 12, DIGEST = 8 };

static uint64_t rotated(uint64_t word, int by)
{
    return word >> by | word << (64 - by);
}

static uint64_t little(const uint8_t *bytes)
{
    uint64_t word = 0;
    for (int at = 7; at >= 0; at--)
        word = word << 8 | bytes[at];
    return word;
}

static void mix(uint64_t v[16], int a, int b, int c, int d, uint64_t x, uint64_t y)
{
    v[a] += v[b] + x;
    v[d] = rotated(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotated(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = rotated(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotated(v[b] ^ v[c], 63);
}

static void compress(uint64_t state[8], const uint8_t block[BLOCK], uint64_t total, int is_last)
{
    uint64_t v[16], words[16];
    for (int at = 0; at < 16; at++)
        words[at] = little(block + 8 * at);
    memcpy(v, state, 64);
    memcpy(v + 8, initial, 64);
    v[12] ^= total;
    if (is_last)
        v[14] = ~v[14];
    for (int round = 0; round < ROUNDS; round++) {
        const uint8_t *s = order[round % 10];
        for (int column = 0; column < 4; column++)
            mix(v, column, column + 4, column + 8, column + 12, words[s[2 * column]],
                words[s[2 * column + 1]]);
        for (int start = 0; start < 4; start++)
            mix(v, start, 4 + (start + 1) % 4, 8 + (start + 2) % 4, 12 + (start + 3) % 4,
                words[s[8 + 2 * start]], words[s[9 + 2 * start]]);
    }
    for (int at = 0; at < 8; at++)
        state[at] ^= v[at] ^ v[at + 8];
}

uint64_t ns_blake2b(const void *data, size_t length)
{
    const uint8_t *bytes = data;
    uint64_t state[8];
    uint8_t last[BLOCK] = {0};
    size_t done = 0;
    memcpy(state, initial, sizeof state);
    state[0] ^= 0x01010000 ^ DIGEST; /* no key, fanout and depth 1 */
    for (; length - done > BLOCK; done += BLOCK)
        compress(state, bytes + done, done + BLOCK, 0);
    memcpy(last, bytes + done, length - done);
    compress(state, last, length, 1);
    return state[0];
}

uint32_t ns_crc32(uint32_t start, const void *data, size_t length)
{
    static const uint32_t nibbles[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
        0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    const uint8_t *bytes = data;
    uint32_t crc = ~start;
    for (size_t at = 0; at < length; at++) {
        crc ^= bytes[at];
        crc = crc >> 4 ^ nibbles[crc & 15];
        crc = crc >> 4 ^ nibbles[crc & 15];
    }
    return ~crc;
}

uint64_t ns_sign(const char *op, const char *dtype, const char *redop, int32_t root,
                 const char *agreed)
{
    /* The texts are short; one that is not would be cut the same way on every rank. */
    char text[1024], place[16] = "";
    if (!strcmp(op, "send") || !strcmp(op, "recv"))
        return 0;
    if (root >= 0)
        snprintf(place, sizeof place, "%d", (int)root);
    int length = snprintf(text, sizeof text, "%s|%s|%s|%s|%s", op, dtype ? dtype : "",
                          redop ? redop : "", place, agreed ? agreed : "");
    if (length < 0)
        length = 0;
    else if ((size_t)length >= sizeof text)
        length = sizeof text - 1;
    return ns_blake2b(text, (size_t)length) | 1;
}
