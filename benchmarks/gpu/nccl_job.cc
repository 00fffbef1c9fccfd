// A program in C++ that uses NCCL and nothing else, for benchmarks/gpu/any_program.py.
//
//     RANK=.. WORLD_SIZE=.. nccl_job LIBNCCL LIBCUDART ID_FILE none|left_out|changed
//
// It declares what it needs of both libraries itself, so that it compiles without their headers. At
// step 7, rank 2 leaves out an all_gather, or reduces half of the elements.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kSteps = 12, kStepOfMistake = 7, kRankOfMistake = 2, kFloat = 7, kSum = 0;

struct UniqueId {
    char internal[128];
};

void *open_library(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::exit(2);
    }
    return library;
}

template <typename Function> Function *find(void *library, const char *name)
{
    auto *found = reinterpret_cast<Function *>(dlsym(library, name));
    if (found == nullptr) {
        std::fprintf(stderr, "no %s\n", name);
        std::exit(2);
    }
    return found;
}

void check(int status, const char *what)
{
    if (status != 0) {
        std::fprintf(stderr, "%s: error %d\n", what, status);
        std::exit(3);
    }
}

// Rank 0 makes the id; the others wait for its file.
UniqueId exchange(const std::string &path, int rank, int (*make)(UniqueId *))
{
    UniqueId id{};
    if (rank == 0) {
        check(make(&id), "ncclGetUniqueId");
        std::string fresh = path + ".new";
        FILE *file = std::fopen(fresh.c_str(), "wb");
        if (file == nullptr || std::fwrite(&id, sizeof id, 1, file) != 1)
            std::exit(2);
        std::fclose(file);
        std::rename(fresh.c_str(), path.c_str());
        return id;
    }
    for (int tries = 0; tries < 600; tries++, usleep(100000)) {
        FILE *file = std::fopen(path.c_str(), "rb");
        if (file != nullptr) {
            bool whole = std::fread(&id, sizeof id, 1, file) == 1;
            std::fclose(file);
            if (whole)
                return id;
        }
    }
    std::fprintf(stderr, "rank 0 made no id\n");
    std::exit(2);
}

int number_of(const char *name)
{
    const char *text = std::getenv(name);
    return text == nullptr ? 0 : std::atoi(text);
}

} // namespace

int main(int count, char **arguments)
{
    if (count != 5)
        return 2;
    int rank = number_of("RANK"), world = number_of("WORLD_SIZE");
    void *nccl = open_library(arguments[1]), *cuda = open_library(arguments[2]);
    std::string mistake = arguments[4];
    using Comm = void *;
    using Stream = void *;

    check(find<int(int)>(cuda, "cudaSetDevice")(0), "cudaSetDevice");
    Stream stream = nullptr;
    check(find<int(Stream *)>(cuda, "cudaStreamCreate")(&stream), "cudaStreamCreate");
    float *input = nullptr, *output = nullptr;
    auto *allocate = find<int(void **, size_t)>(cuda, "cudaMalloc");
    check(allocate(reinterpret_cast<void **>(&input), 1 << 20), "cudaMalloc");
    check(allocate(reinterpret_cast<void **>(&output), 1 << 20), "cudaMalloc");

    UniqueId id = exchange(arguments[3], rank, find<int(UniqueId *)>(nccl, "ncclGetUniqueId"));
    Comm comm = nullptr;
    check(find<int(Comm *, int, UniqueId, int)>(nccl, "ncclCommInitRank")(&comm, world, id, rank),
          "ncclCommInitRank");
    auto *all_reduce = find<int(const void *, void *, size_t, int, int, Comm, Stream)>(
        nccl, "ncclAllReduce");
    auto *all_gather =
        find<int(const void *, void *, size_t, int, Comm, Stream)>(nccl, "ncclAllGather");
    auto *reduce_scatter = find<int(const void *, void *, size_t, int, int, Comm, Stream)>(
        nccl, "ncclReduceScatter");
    auto *broadcast = find<int(const void *, void *, size_t, int, int, Comm, Stream)>(
        nccl, "ncclBroadcast");
    auto *send = find<int(const void *, size_t, int, int, Comm, Stream)>(nccl, "ncclSend");
    auto *receive = find<int(void *, size_t, int, int, Comm, Stream)>(nccl, "ncclRecv");
    auto *group_start = find<int()>(nccl, "ncclGroupStart");
    auto *group_end = find<int()>(nccl, "ncclGroupEnd");

    for (int step = 0; step < kSteps; step++) {
        bool wrong = rank == kRankOfMistake && step == kStepOfMistake;
        size_t elements = wrong && mistake == "changed" ? 512 : 1024;
        check(all_reduce(input, output, elements, kFloat, kSum, comm, stream), "ncclAllReduce");
        if (!(wrong && mistake == "left_out"))
            check(all_gather(input, output, 256, kFloat, comm, stream), "ncclAllGather");
        check(reduce_scatter(input, output, 256, kFloat, kSum, comm, stream), "ncclReduceScatter");
        check(group_start(), "ncclGroupStart");
        check(send(input, 64, kFloat, (rank + 1) % world, comm, stream), "ncclSend");
        check(receive(output, 64, kFloat, (rank + world - 1) % world, comm, stream), "ncclRecv");
        check(group_end(), "ncclGroupEnd");
        check(broadcast(input, output, 128, kFloat, 1 % world, comm, stream), "ncclBroadcast");
    }
    check(find<int(Stream)>(cuda, "cudaStreamSynchronize")(stream), "cudaStreamSynchronize");
    check(find<int(Comm)>(nccl, "ncclCommDestroy")(comm), "ncclCommDestroy");
    std::puts("done");
    return 0;
}
