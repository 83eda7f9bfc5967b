/* What a program has shown: the identifiers of the checks that it has passed, collected while it runs and
 * printed at its good end. Included by common.h.
 *
 * The collection is memory that forked children share, so one line tells of all processes of a program,
 * also of those that are killed. A check that was not reached leaves no trace, and that is the point. */
#ifndef CTEST_SHOWN_H
#define CTEST_SHOWN_H

#define SHOWN_MOST 1024

struct shown {
    pid_t owner;                /* who prints */
    const char *id[SHOWN_MOST]; /* hashed by address: identifiers are string literals */
};

static struct shown *shown;

/* The checks of this identifier hold so far. Cheap enough for a loop over messages. */
static inline void shows(const char *id)
{
    size_t i = ((uintptr_t)id >> 1) % SHOWN_MOST, tries;

    if (shown == NULL)
        return;
    for (tries = 0; tries < SHOWN_MOST; tries++, i = (i + 1) % SHOWN_MOST) {
        const char *there = __atomic_load_n(&shown->id[i], __ATOMIC_RELAXED);

        if (there == NULL && __atomic_compare_exchange_n(&shown->id[i], &there, id, 0, __ATOMIC_RELAXED,
                                                         __ATOMIC_RELAXED))
            return;
        if (there == id)
            return;
    }
    abort(); /* more identifiers than any program has */
}

/* `text` begins with an identifier: a group in capitals, a hyphen, two digits. Its length, otherwise 0. */
static inline size_t identifier(const char *text)
{
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");

    return n >= 2 && text[n] == '-' && strspn(text + n + 1, "0123456789") == 2 ? n + 3 : 0;
}

static inline int compare_words(const void *a, const void *b)
{
    return strcmp((const char *)a, (const char *)b);
}

/* Runs at the end of the program; one text may name several identifiers. */
static inline void print_shown(int status, void *unused)
{
    static char word[4 * SHOWN_MOST][16];
    size_t i, n = 0, bytes;
    const char *p;

    (void)unused;
    if (status != 0 || getpid() != shown->owner)
        return;
    for (i = 0; i < SHOWN_MOST; i++) {
        for (p = shown->id[i]; p != NULL && *p != '\0' && n < 4 * SHOWN_MOST; p += bytes ? bytes : 1) {
            bytes = identifier(p);
            if (bytes != 0 && bytes < sizeof word[0])
                memcpy(word[n++], p, bytes);
        }
    }
    qsort(word, n, sizeof word[0], compare_words);
    printf("shown:");
    for (i = 0; i < n; i++)
        if (i == 0 || strcmp(word[i], word[i - 1]) != 0)
            printf(" %s", word[i]);
    printf("\n");
}

/* Comes before the first check that is to count, and before any fork. */
static inline void start_showing(void)
{
    void *pages = mmap(NULL, sizeof(struct shown), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (pages == MAP_FAILED)
        abort();
    shown = (struct shown *)pages;
    shown->owner = getpid();
    on_exit(print_shown, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0); /* whole lines, also from two processes into one pipe */
}

#endif
