/* System calls of a process that fail, come short, take long, or lie about the time, as a page in shared memory says
 * (tests/campaign/shim/control.py writes it), and a record of all that a loss of power would take away.
 *
 * Loaded by LD_PRELOAD. CAMPAIGN_SHIM names the control page; without it nothing is changed.
 *
 * The record: before a file below `watched` is written, what the write replaces is appended to an undo file in
 * `undo_dir`, named by inode, time of birth and a number. A sync that succeeds removes the undo files that were begun
 * before it; one that fails leaves them for good, since the kernel forgets pages that it could not write. So whatever is
 * in that folder when the process is dead was never durable. tests/campaign/shim/power.py takes it back.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define RULES 8
enum { OP_WRITE = 1, OP_SYNC = 2, OP_OPEN = 4, OP_ALLOCATE = 8, OP_READ = 16, OP_NAMES = 32 };

struct rule {
  uint32_t active, ops, error, one_in, delay_us, shorten, hits, spare;
  char path[96];
};

struct control {
  uint32_t magic, undo;
  int64_t clock_offset_ns;
  char undo_dir[256];
  char watched[256];
  struct rule rules[RULES];
};

static struct control *control;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("CAMPAIGN_SHIM");
  if (path == NULL) return;
  int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void *page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (page != MAP_FAILED) control = page;
}

#define REAL(name)                                               \
  static __typeof__(&name) real;                                 \
  if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* --- what a file descriptor is --------------------------------------------------------------------------------- */

enum { UNKNOWN, OTHER, WATCHED, WATCHED_APPEND };
#define DESCRIPTORS 65536
static uint8_t kinds[DESCRIPTORS];

static int path_of(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
  path[n > 0 ? n : 0] = 0;
  return n > 0;
}

static int kind_of(int fd) {
  if (control == NULL || !control->undo || fd < 0 || fd >= DESCRIPTORS) return OTHER;
  if (kinds[fd] == UNKNOWN) {
    char path[PATH_MAX];
    uint8_t kind = OTHER;
    if (path_of(fd, path) && strncmp(path, control->watched, strlen(control->watched)) == 0) {
      struct stat found;
      if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) {
        kind = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND ? WATCHED_APPEND : WATCHED;
      }
    }
    kinds[fd] = kind;
  }
  return kinds[fd];
}

static void forget(int fd) {
  if (fd >= 0 && fd < DESCRIPTORS) kinds[fd] = UNKNOWN;
}

/* --- rules -------------------------------------------------------------------------------------------------------- */

static uint32_t dice(void) {
  static __thread uint32_t state;
  if (state == 0) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    state = ((uint32_t)syscall(SYS_gettid) * 2654435761u ^ (uint32_t)now.tv_nsec * 40503u) | 1;
  }
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}

/* The error that the call has to fail with, or 0. `shorten` is set when a write has to come short. */
static int judge(uint32_t op, const char *path, int fd, int *shorten) {
  if (control == NULL) return 0;
  char found[PATH_MAX];
  int known = 0;
  for (int i = 0; i < RULES; i++) {
    struct rule *rule = &control->rules[i];
    if (!rule->active || !(rule->ops & op)) continue;
    if (path == NULL && !known) {
      if (!path_of(fd, found)) return 0;
      known = 1;
    }
    if (strstr(path ? path : found, rule->path) == NULL) continue;
    if (rule->one_in > 1 && dice() % rule->one_in != 0) continue;
    __atomic_add_fetch(&rule->hits, 1, __ATOMIC_RELAXED);
    if (rule->delay_us) {
      struct timespec delay = {rule->delay_us / 1000000, rule->delay_us % 1000000 * 1000L};
      syscall(SYS_nanosleep, &delay, NULL);
    }
    if (rule->shorten && shorten) *shorten = 1;
    if (rule->error) return (int)rule->error;
  }
  return 0;
}

#define FAIL_IF(op, path, fd)                    \
  do {                                           \
    int error_ = judge((op), (path), (fd), NULL); \
    if (error_) {                                \
      errno = error_;                            \
      return -1;                                 \
    }                                            \
  } while (0)

/* --- the record of what is not durable ---------------------------------------------------------------------------- */

#define FILES 4096
#define PARTS 64
struct undone {
  uint64_t inode, birth;
  int fd, parts;
  uint64_t numbers[PARTS];
};
static struct undone files[FILES];
static int file_count;
static uint64_t last_number;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct head {
  uint32_t magic, spare;
  uint64_t offset, length, old_size, saved;
};

static void part_path(char *path, const struct undone *file, uint64_t number) {
  snprintf(path, PATH_MAX, "%s/%llu-%llu.%020llu", control->undo_dir, (unsigned long long)file->inode,
           (unsigned long long)file->birth, (unsigned long long)number);
}

static void find_parts(struct undone *file) {
  char prefix[64];
  int length = snprintf(prefix, sizeof prefix, "%llu-%llu.", (unsigned long long)file->inode, (unsigned long long)file->birth);
  DIR *folder = opendir(control->undo_dir);
  if (folder == NULL) return;
  for (struct dirent *each; (each = readdir(folder)) != NULL;) {
    if (strncmp(each->d_name, prefix, length) == 0 && strchr(each->d_name + length, '.') == NULL && file->parts < PARTS - 1) {
      file->numbers[file->parts++] = strtoull(each->d_name + length, NULL, 10);
    }
  }
  closedir(folder);
}

static struct undone *file_of(int fd, uint64_t *size) {
  struct statx found;
  if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_INO | STATX_SIZE | STATX_BTIME, &found) != 0) return NULL;
  uint64_t birth = (uint64_t)found.stx_btime.tv_sec * 1000000000u + found.stx_btime.tv_nsec;
  *size = found.stx_size;
  for (int i = file_count - 1; i >= 0; i--) {
    if (files[i].inode == found.stx_ino && files[i].birth == birth) return &files[i];
  }
  struct undone *file = &files[file_count < FILES ? file_count++ : (int)(dice() % FILES)];
  if (file->fd > 0) syscall(SYS_close, file->fd);
  *file = (struct undone){.inode = found.stx_ino, .birth = birth, .fd = -1};
  find_parts(file);
  return file;
}

static void record(int fd, int64_t offset, uint64_t length) {
  int saved_errno = errno;
  pthread_mutex_lock(&lock);
  uint64_t size;
  struct undone *file = file_of(fd, &size);
  if (file != NULL) {
    if (offset < 0) offset = kind_of(fd) == WATCHED_APPEND ? (int64_t)size : (int64_t)syscall(SYS_lseek, fd, 0, SEEK_CUR);
    if (file->fd < 0) {
      char path[PATH_MAX];
      if (file->parts < PARTS) {
        struct timespec now;
        syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
        uint64_t number = (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
        last_number = number > last_number ? number : last_number + 1;
        file->numbers[file->parts++] = last_number;
      }
      part_path(path, file, file->numbers[file->parts - 1]);
      file->fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    uint64_t saved = 0;
    if ((uint64_t)offset < size) saved = size - offset < length ? size - offset : length;
    char *data = malloc(sizeof(struct head) + saved);
    if (data != NULL && file->fd >= 0) {
      if (saved) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int reader = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
        ssize_t got = reader < 0 ? -1 : syscall(SYS_pread64, reader, data + sizeof(struct head), saved, offset);
        if (reader >= 0) syscall(SYS_close, reader);
        if (got < 0) got = 0;
        memset(data + sizeof(struct head) + got, 0, saved - got);
      }
      *(struct head *)data = (struct head){0x4f444e55, 0, offset, length, size, saved};
      ssize_t ignored = syscall(SYS_write, file->fd, data, sizeof(struct head) + saved);
      (void)ignored;
    }
    free(data);
  }
  pthread_mutex_unlock(&lock);
  errno = saved_errno;
}

/* A sync begins: what is recorded from now on is not covered by it. */
static int sync_begins(int fd, struct undone *covered) {
  if (kind_of(fd) < WATCHED) return 0;
  pthread_mutex_lock(&lock);
  uint64_t size;
  struct undone *file = file_of(fd, &size);
  if (file != NULL) {
    if (file->fd >= 0) syscall(SYS_close, file->fd);
    file->fd = -1;
    *covered = *file;
  }
  pthread_mutex_unlock(&lock);
  return file != NULL;
}

static void sync_ended(const struct undone *covered, int durable) {
  int saved_errno = errno;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < covered->parts; i++) {
    char path[PATH_MAX], doomed[PATH_MAX + 8];
    part_path(path, covered, covered->numbers[i]);
    snprintf(doomed, sizeof doomed, "%s.doomed", path);
    if (durable) syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    else syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, doomed, 0);
  }
  for (int i = 0; i < file_count; i++) {
    if (files[i].inode != covered->inode || files[i].birth != covered->birth) continue;
    int kept = 0; /* after a failure those parts stay on the disk and are nobody's any more */
    for (int j = 0; j < files[i].parts; j++) {
      int is_covered = 0;
      for (int k = 0; k < covered->parts; k++) is_covered |= covered->numbers[k] == files[i].numbers[j];
      if (!is_covered) files[i].numbers[kept++] = files[i].numbers[j];
    }
    files[i].parts = kept;
    if (kept == 0 && files[i].fd >= 0) { /* begun by a write since: it has a part of its own */
      syscall(SYS_close, files[i].fd);
      files[i].fd = -1;
    }
  }
  pthread_mutex_unlock(&lock);
  errno = saved_errno;
}

static int synced(int fd, int (*call)(int)) {
  struct undone covered;
  int error = judge(OP_SYNC, NULL, fd, NULL);
  int recorded = sync_begins(fd, &covered);
  int result = error ? -1 : call(fd);
  if (recorded) sync_ended(&covered, result == 0);
  if (error) errno = error;
  return result;
}

int fsync(int fd) {
  REAL(fsync);
  return synced(fd, real);
}

int fdatasync(int fd) {
  REAL(fdatasync);
  return synced(fd, real);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

#define WRITES(fd, offset, length)                                     \
  int short_ = 0, error_ = judge(OP_WRITE, NULL, (fd), &short_);       \
  if (error_) {                                                        \
    errno = error_;                                                    \
    return -1;                                                         \
  }                                                                    \
  if (kind_of(fd) >= WATCHED) record((fd), (offset), (length))

/* Half of it; past the page cache nothing but whole sectors is ever written. */
static size_t half(int fd, size_t length) {
  if (!(syscall(SYS_fcntl, fd, F_GETFL) & O_DIRECT)) return length > 1 ? length / 2 : length;
  return length >= 1024 ? length / 2 / 512 * 512 : length;
}

#define SHORTER(length) (short_ ? half(fd, (length)) : (length))

ssize_t write(int fd, const void *data, size_t length) {
  REAL(write);
  if (control == NULL) return real(fd, data, length);
  WRITES(fd, -1, length);
  return real(fd, data, SHORTER(length));
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
  REAL(pwrite);
  WRITES(fd, offset, length);
  return real(fd, data, SHORTER(length), offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
  REAL(pwrite64);
  WRITES(fd, offset, length);
  return real(fd, data, SHORTER(length), offset);
}

#define FEWER(count) (short_ && (count) > 1 ? (count) / 2 : (count))

static size_t total(const struct iovec *pieces, int count) {
  size_t sum = 0;
  for (int i = 0; i < count; i++) sum += pieces[i].iov_len;
  return sum;
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
  REAL(writev);
  if (control == NULL) return real(fd, pieces, count);
  WRITES(fd, -1, total(pieces, count));
  return real(fd, pieces, FEWER(count));
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset) {
  REAL(pwritev);
  WRITES(fd, offset, total(pieces, count));
  if (short_ && count == 1) return pwrite64(fd, pieces[0].iov_base, SHORTER(pieces[0].iov_len), offset);
  return real(fd, pieces, FEWER(count), offset);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t offset) {
  REAL(pwritev64);
  WRITES(fd, offset, total(pieces, count));
  if (short_ && count == 1) return pwrite64(fd, pieces[0].iov_base, SHORTER(pieces[0].iov_len), offset);
  return real(fd, pieces, FEWER(count), offset);
}

ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t offset, int flags) {
  REAL(pwritev2);
  WRITES(fd, offset, total(pieces, count));
  return real(fd, pieces, FEWER(count), offset, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off64_t offset, int flags) {
  REAL(pwritev64v2);
  WRITES(fd, offset, total(pieces, count));
  return real(fd, pieces, FEWER(count), offset, flags);
}

/* --- sizes -------------------------------------------------------------------------------------------------------- */

static int sized(int fd, off64_t offset) {
  if (kind_of(fd) < WATCHED) return 0;
  struct stat found;
  if (fstat(fd, &found) != 0) return 0;
  uint64_t cut = found.st_size > offset ? (uint64_t)(found.st_size - offset) : 0;
  record(fd, cut ? offset : found.st_size, cut);
  return 0;
}

int ftruncate(int fd, off_t size) {
  REAL(ftruncate);
  FAIL_IF(OP_WRITE, NULL, fd);
  sized(fd, size);
  return real(fd, size);
}

int ftruncate64(int fd, off64_t size) {
  REAL(ftruncate64);
  FAIL_IF(OP_WRITE, NULL, fd);
  sized(fd, size);
  return real(fd, size);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  REAL(fallocate);
  FAIL_IF(OP_ALLOCATE, NULL, fd);
  return real(fd, mode, offset, length);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
  REAL(fallocate64);
  FAIL_IF(OP_ALLOCATE, NULL, fd);
  return real(fd, mode, offset, length);
}

int posix_fallocate(int fd, off_t offset, off_t length) {
  REAL(posix_fallocate);
  int error = judge(OP_ALLOCATE, NULL, fd, NULL);
  return error ? error : real(fd, offset, length);
}

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
  REAL(posix_fallocate64);
  int error = judge(OP_ALLOCATE, NULL, fd, NULL);
  return error ? error : real(fd, offset, length);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

ssize_t pread(int fd, void *data, size_t length, off_t offset) {
  REAL(pread);
  FAIL_IF(OP_READ, NULL, fd);
  return real(fd, data, length, offset);
}

ssize_t pread64(int fd, void *data, size_t length, off64_t offset) {
  REAL(pread64);
  FAIL_IF(OP_READ, NULL, fd);
  return real(fd, data, length, offset);
}

/* --- names -------------------------------------------------------------------------------------------------------- */

#define OPENED(name, directory, path, flags, ...)                                                    \
  REAL(name);                                                                                        \
  mode_t mode = 0;                                                                                   \
  if ((flags) & (O_CREAT | O_TMPFILE)) {                                                             \
    va_list more;                                                                                    \
    va_start(more, flags);                                                                           \
    mode = va_arg(more, mode_t);                                                                     \
    va_end(more);                                                                                    \
  }                                                                                                  \
  if (control != NULL && ((flags) & (O_WRONLY | O_RDWR | O_CREAT))) FAIL_IF(OP_OPEN, (path), -1);    \
  if (control != NULL && !((flags) & (O_WRONLY | O_RDWR | O_CREAT))) FAIL_IF(OP_READ, (path), -1)

int open(const char *path, int flags, ...) {
  OPENED(open, AT_FDCWD, path, flags);
  int fd = real(path, flags, mode);
  forget(fd);
  return fd;
}

int open64(const char *path, int flags, ...) {
  OPENED(open64, AT_FDCWD, path, flags);
  int fd = real(path, flags, mode);
  forget(fd);
  return fd;
}

int openat(int folder, const char *path, int flags, ...) {
  OPENED(openat, folder, path, flags);
  int fd = real(folder, path, flags, mode);
  forget(fd);
  return fd;
}

int openat64(int folder, const char *path, int flags, ...) {
  OPENED(openat64, folder, path, flags);
  int fd = real(folder, path, flags, mode);
  forget(fd);
  return fd;
}

int close(int fd) {
  REAL(close);
  forget(fd);
  return real(fd);
}

int rename(const char *from, const char *to) {
  REAL(rename);
  FAIL_IF(OP_NAMES, to, -1);
  return real(from, to);
}

int unlink(const char *path) {
  REAL(unlink);
  FAIL_IF(OP_NAMES, path, -1);
  return real(path);
}

/* --- the time ----------------------------------------------------------------------------------------------------- */

int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(clock_gettime);
  int result = real(clock, now);
  if (control != NULL && control->clock_offset_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t shifted = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + control->clock_offset_ns;
    now->tv_sec = shifted / 1000000000;
    now->tv_nsec = shifted % 1000000000;
  }
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec exact;
  int result = clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return result;
}

time_t time(time_t *out) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (out != NULL) *out = exact.tv_sec;
  return exact.tv_sec;
}
