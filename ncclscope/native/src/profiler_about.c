/* Describe this process in its ring, in the fields that the Python recorder writes, too. */
#define _GNU_SOURCE
#include "profiler.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMAND 16384   /* bytes of a command line that are read */
#define WORDS 40        /* arguments that are kept */
#define LONGEST_WORD 200
#define LONGEST_REASON 256 /* with what else is in it, a page holds six times as much */
#define LONGEST_ARGV 4000 /* bytes of all of them, for a description has 8 KiB */

const char *ns_variable(const char *name)
{
    static const char *const prefixes[] = {"NCCLSCOPE_", "NCCL_SCOPE_"};
    for (int one = 0; one < 2; one++) {
        char full[64];
        snprintf(full, sizeof full, "%s%s", prefixes[one], name);
        const char *value = getenv(full);
        if (value != NULL && *value)
            return value;
    }
    return "";
}

static bool number_of(const char *name, int *number)
{
    const char *text = getenv(name);
    char *end;
    if (text == NULL || !isdigit((unsigned char)*text))
        return false;
    long value = strtol(text, &end, 10);
    if (*end != 0 || value > INT32_MAX)
        return false;
    *number = (int)value;
    return true;
}

bool ns_rank_of_launcher(int *rank, int *world)
{
    static const char *const names[][2] = {
        {"RANK", "WORLD_SIZE"},
        {"SLURM_PROCID", "SLURM_NTASKS"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"PMI_RANK", "PMI_SIZE"},
    };
    for (size_t one = 0; one < sizeof names / sizeof *names; one++)
        if (number_of(names[one][0], rank) && number_of(names[one][1], world) && *rank < *world)
            return true;
    return false;
}

/* --- JSON ----------------------------------------------------------------------------------------- */

struct text {
    char *at, *end;
};

static void put(struct text *into, const char *text)
{
    size_t length = strlen(text), room = (size_t)(into->end - into->at);
    length = length < room ? length : room;
    memcpy(into->at, text, length);
    into->at += length;
}

/* Append a JSON string. What is not ASCII, as a path may be, stays as it is if it is UTF-8. */
static void put_string(struct text *into, const char *text, size_t length)
{
    put(into, "\"");
    for (size_t at = 0; at < length; at++) {
        unsigned char one = (unsigned char)text[at];
        char escaped[8] = {(char)one, 0};
        if (one == '"' || one == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", one);
        else if (one < 0x20 || one > 0x7e)
            snprintf(escaped, sizeof escaped, "\\u%04x", one); /* bytes above as Latin-1 */
        put(into, escaped);
    }
    put(into, "\"");
}

static void put_field(struct text *into, const char *name, const char *value)
{
    put(into, ", \"");
    put(into, name);
    put(into, "\": ");
    put_string(into, value, strnlen(value, LONGEST_WORD));
}

static void put_number(struct text *into, const char *name, uint64_t value)
{
    char text[64];
    snprintf(text, sizeof text, ", \"%s\": %" PRIu64, name, value);
    put(into, text);
}

/* --- secrets in the command line -------------------------------------------------------------------- */

/* Whether a name is that of a secret. It has parts, as `api-key`, `HF_TOKEN` and `apiKey` have. */
static bool names_secret(const char *name, size_t length)
{
    static const char *const words[] = {
        "key",      "keys",     "token",      "apikey",     "apikeys",     "apitoken",
        "secret",   "secrets",  "secretkey",  "accesskey",  "accesstoken", "authkey",
        "password", "passwd",   "passphrase", "passwords",  "authtoken",   "secrettoken",
        "credential", "credentials", "authorization", "pgpassword", "sshpass", "pass",
        "bearer", "cookie",   "cookies",  "sig",        "signature",
    };
    size_t start = 0;
    while (start < length) {
        size_t end = start;
        while (end < length && isalpha((unsigned char)name[end]) &&
               !(end > start && isupper((unsigned char)name[end]) &&
                 islower((unsigned char)name[end - 1])))
            end++;
        for (size_t one = 0; one < sizeof words / sizeof *words; one++)
            if (end - start == strlen(words[one]) &&
                strncasecmp(name + start, words[one], end - start) == 0)
                return true;
        /* The value of `--http-auth` is a secret, those of `--auth-type` and `--no-auth` are not. */
        if (length - end <= 1 && end - start == 4 && strncasecmp(name + start, "auth", 4) == 0 &&
            memmem(name, length, "no-", 3) == NULL)
            return true;
        start = end > start ? end : end + 1;
    }
    return false;
}

/* Whether a word holds a secret in a known form, anywhere. */
static bool holds_secret(const char *word)
{
    static const char *const forms[] = {"sk-",   "hf_",   "ghp_",  "gho_",   "ghu_",   "ghs_",
                                        "ghr_",  "github_pat_", "glpat-", "AKIA", "ASIA", "AIza",
                                        "xoxb-", "xoxp-", "xoxa-", "nvapi-", "npm_", "pypi-",
                                        "eyJ",   "gsk_",  "xai-",  "r8_",    "ya29.", "wandb_v",
                                        "lsv2_", "dop_v"};
    for (size_t one = 0; one < sizeof forms / sizeof *forms; one++) {
        const char *found = strstr(word, forms[one]);
        if (found != NULL && (found == word || !isalnum((unsigned char)found[-1])) &&
            strlen(found) >= strlen(forms[one]) + 8)
            return true;
    }
    const char *host = strstr(word, "://");
    if (host != NULL && strchr(host + 3, '@') != NULL)
        return true;
    return strcasestr(word, "bearer ") != NULL || strcasestr(word, "basic ") != NULL;
}

/* Whether a word has a value after the name of a secret: `--key=X`, `{"key":"X"}`, `?a=1&key=X`. */
static bool assigns_secret(const char *word)
{
    size_t last = strlen(word);
    while (last > 0 && strchr("=: ", word[last - 1]) == NULL)
        last--;
    return names_secret(word, last);
}

/* Append an argument. Of one that holds a secret only the name of the option stays. */
static void put_word(struct text *into, const char *word, bool follows_secret)
{
    size_t kept = strnlen(word, LONGEST_WORD);
    char redacted[LONGEST_WORD + 8];
    if (follows_secret || holds_secret(word) || assigns_secret(word)) {
        int name = 0;
        while (name < LONGEST_WORD && (isalnum((unsigned char)word[name]) ||
                                       (word[name] != 0 && strchr("-_.", word[name]) != NULL)))
            name++;
        name = word[name] != '=' || follows_secret ? 0 : name < LONGEST_WORD ? name + 1 : name;
        snprintf(redacted, sizeof redacted, "%.*s", name, word);
        if (holds_secret(redacted))
            name = 0;
        strcpy(redacted + name, "***");
        word = redacted;
        kept = strlen(redacted);
    }
    put_string(into, word, kept);
}

static size_t read_file(const char *path, char *into, size_t room)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    ssize_t length = 0, got;
    while ((size_t)length < room - 1 &&
           (got = read(descriptor, into + length, room - 1 - (size_t)length)) > 0)
        length += got;
    close(descriptor);
    into[length] = 0;
    return (size_t)length;
}

static void put_command(struct text *into)
{
    char *command = malloc(COMMAND);
    size_t length = command == NULL ? 0 : read_file("/proc/self/cmdline", command, COMMAND);
    char *limit = into->at + LONGEST_ARGV;
    bool secret = false;
    int words = 0;
    put(into, ", \"argv\": [");
    for (size_t at = 0; at < length && words < WORDS && into->at < limit; words++) {
        const char *word = command + at;
        if (words > 0)
            put(into, ", ");
        put_word(into, word, secret && *word != '-');
        secret = *word == '-' && strchr(word, '=') == NULL && names_secret(word, strlen(word));
        at += strlen(word) + 1;
    }
    put(into, "]");
    free(command);
}

/* --- the process -------------------------------------------------------------------------------------- */

static uint64_t start_ticks(void)
{
    char stat[1024];
    size_t length = read_file("/proc/self/stat", stat, sizeof stat);
    char *at = length == 0 ? NULL : strrchr(stat, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

static void put_machine(struct text *into)
{
    char host[LONGEST_WORD] = "", boot[LONGEST_WORD] = "";
    struct stat space;
    gethostname(host, sizeof host - 1);
    read_file("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    boot[strcspn(boot, "\n")] = 0;
    put(into, "{\"host\": ");
    put_string(into, host, strlen(host));
    put_number(into, "pid", (uint64_t)getpid());
    put_number(into, "parent", (uint64_t)getppid());
    put_number(into, "started_ns", ns_now(NULL));
    put_field(into, "boot_id", boot);
    put_number(into, "pid_namespace",
               stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0);
    put_number(into, "start_ticks", start_ticks());
}

static void put_rank(struct text *into, const ns_about *about)
{
    put_field(into, "run", ns_variable("RUN"));
    put_number(into, "rank", (uint64_t)about->rank);
    put_number(into, "world_size", (uint64_t)about->world);
}

static void put_gpu(struct text *into)
{
    int device;
    bool driver = access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
    if (driver && (number_of("LOCAL_RANK", &device) || number_of("SLURM_LOCALID", &device)))
        put_number(into, "gpu", (uint64_t)device);
    else
        put(into, ", \"gpu\": null");
}

static void put_nccl(struct text *into, int version)
{
    char text[96];
    if (version <= 0) {
        put(into, ", \"versions\": {}");
        return;
    }
    snprintf(text, sizeof text, ", \"versions\": {\"nccl\": \"%d.%d.%d\"}", version / 10000,
             version % 10000 / 100, version % 100);
    put(into, text);
}

size_t ns_about_json(const ns_about *about, char *json, size_t room)
{
    struct text into = {json, json + room - 1};
    put_machine(&into);
    put_command(&into);
    put_nccl(&into, about->nccl);
    put_gpu(&into);
    put_rank(&into, about);
    put_field(&into, "recorder", "nccl-plugin");
    put_number(&into, "profiler_api", (uint64_t)about->api);
    if (about->armed_ns)
        put_number(&into, "armed_ns", about->armed_ns);
    if (about->full)
        put(&into, ", \"unseen\": [{\"kind\": \"full\", \"text\": \"the ring has no room for "
                   "another communicator: calls on later ones are not recorded\", "
                   "\"comms\": []}]");
    put(&into, ", \"labels\": {}}");
    *into.at = 0;
    return (size_t)(into.at - json);
}

size_t ns_untraced_json(const ns_about *about, const char *why, bool final, char *json, size_t room)
{
    struct text into = {json, json + room - 1};
    put_machine(&into);
    put_rank(&into, about);
    put_number(&into, "ncclscope_untraced", 1);
    put_number(&into, "time_ns", ns_now(NULL));
    put(&into, final ? ", \"final\": true" : ", \"final\": false");
    put(&into, ", \"why\": ");
    put_string(&into, why, strnlen(why, LONGEST_REASON));
    put(&into, "}");
    *into.at = 0;
    return (size_t)(into.at - json);
}
