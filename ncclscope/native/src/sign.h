/* Hashes that the ring's format needs. */
#ifndef NCCLSCOPE_SIGN_H
#define NCCLSCOPE_SIGN_H

#include <stddef.h>
#include <stdint.h>

/* BLAKE2b with a digest of eight bytes, read as a little-endian number. */
uint64_t ns_blake2b(const void *data, size_t length);

/* CRC-32 as in zlib, continued from `start`. */
uint32_t ns_crc32(uint32_t start, const void *data, size_t length);

#endif
