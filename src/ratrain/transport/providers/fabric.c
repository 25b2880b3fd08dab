/* libfabric for the provider `ofi`: a device, ends on it, and blocking reads of a peer's memory.
 *
 * The receiver reads: when fi_read completes, the bytes stand in our memory, whatever the provider
 * calls "complete" for writes; and nothing is placed that the receiver has not allowed. One read
 * call is under way for each end. A call that gives up closes its end first, so that nothing can
 * land after it has returned. Built only where libfabric's headers are (libfabric-dev).
 */
#define _GNU_SOURCE
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int64_t i64;
typedef uint64_t u64;

enum { DEPTH = 64, LOOKS = 200, SLICE_MS = 10, NAP_US = 50 };

typedef struct {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    u64 next_key;
} Device;

typedef struct {
    Device *device;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    fi_addr_t peer;
    int sleeps; /* the queue has a descriptor to sleep on; shm's and EFA's have none */
    struct fi_context context[DEPTH];
} End;

static i64 now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (i64)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

const char *ratrain_fabric_reason(i64 code) { return fi_strerror((int)(code < 0 ? -code : code)); }

void ratrain_fabric_close_device(Device *d) {
    if (!d) return;
    if (d->domain) fi_close(&d->domain->fid);
    if (d->fabric) fi_close(&d->fabric->fid);
    if (d->info) fi_freeinfo(d->info);
    free(d);
}

/* Opens the libfabric provider `name` on the local address `host`, or where it knows no such
 * addresses (shm, EFA) on its first device. 0, or a negative error. */
i64 ratrain_fabric_open_device(const char *name, const char *host, i64 far, Device **out) {
    struct fi_info *hints = fi_allocinfo();
    Device *d = calloc(1, sizeof *d);
    int rc = -FI_ENOMEM;
    *out = 0;
    if (!hints || !d) goto failed;
    hints->caps = FI_MSG | FI_RMA | FI_READ | FI_REMOTE_READ;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    if (far) { /* memory of devices besides RAM */
        hints->caps |= FI_HMEM;
        hints->domain_attr->mr_mode |= FI_MR_HMEM;
    }
    hints->fabric_attr->prov_name = strdup(name);
    rc = strcmp(name, "shm") ? fi_getinfo(FI_VERSION(1, 15), host, 0, FI_SOURCE, hints, &d->info) : -FI_ENODATA;
    if (rc == -FI_ENODATA) rc = fi_getinfo(FI_VERSION(1, 15), 0, 0, 0, hints, &d->info);
    if (rc) goto failed;
    if ((rc = fi_fabric(d->info->fabric_attr, &d->fabric, 0))) goto failed;
    if ((rc = fi_domain(d->fabric, d->info, &d->domain, 0))) goto failed;
    d->next_key = 1;
    fi_freeinfo(hints);
    *out = d;
    return 0;
failed:
    if (hints) fi_freeinfo(hints);
    ratrain_fabric_close_device(d);
    return rc;
}

/* 1 when remote places are absolute addresses, 0 when they are offsets in the region. */
i64 ratrain_fabric_is_virtual(const Device *d) { return !!(d->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR); }

/* Registers memory (of kind FI_HMEM_*, 0 is RAM) for reads from afar and for reads into it. 0, or a
 * negative error. */
i64 ratrain_fabric_register(Device *d, void *base, i64 size, i64 kind, i64 ordinal, struct fid_mr **mr, u64 *key) {
    struct iovec span = {base, (size_t)size};
    struct fi_mr_attr attr = {.mr_iov = &span, .iov_count = 1, .requested_key = d->next_key++};
    attr.access = FI_REMOTE_READ | FI_READ | FI_WRITE;
    attr.iface = (enum fi_hmem_iface)kind;
    attr.device.cuda = (int)ordinal;
    i64 rc = fi_mr_regattr(d->domain, &attr, 0, mr);
    if (!rc) *key = fi_mr_key(*mr);
    return rc;
}

void ratrain_fabric_forget(struct fid_mr *mr) { fi_close(&mr->fid); }

void ratrain_fabric_close_end(End *e) {
    if (!e) return;
    if (e->ep) fi_close(&e->ep->fid);
    if (e->cq) fi_close(&e->cq->fid);
    if (e->av) fi_close(&e->av->fid);
    free(e);
}

/* An endpoint of its own for one peer: `name` gets its address, at most `*room` bytes. */
i64 ratrain_fabric_open_end(Device *d, End **out, void *name, u64 *room) {
    struct fi_cq_attr cq = {.size = 2 * DEPTH, .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_FD};
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 1};
    End *e = calloc(1, sizeof *e);
    size_t size = (size_t)*room;
    i64 rc;
    *out = 0;
    if (!e) return -FI_ENOMEM;
    e->device = d;
    rc = fi_cq_open(d->domain, &cq, &e->cq, 0);
    e->sleeps = !rc;
    if (rc == -FI_ENOSYS || rc == -FI_EOPNOTSUPP) {
        cq.wait_obj = FI_WAIT_NONE;
        rc = fi_cq_open(d->domain, &cq, &e->cq, 0);
    }
    if (rc || (rc = fi_av_open(d->domain, &av, &e->av, 0)) ||
        (rc = fi_endpoint(d->domain, d->info, &e->ep, 0)) ||
        (rc = fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV)) ||
        (rc = fi_ep_bind(e->ep, &e->av->fid, 0)) || (rc = fi_enable(e->ep)) ||
        (rc = fi_getname(&e->ep->fid, name, &size))) {
        ratrain_fabric_close_end(e);
        return rc;
    }
    *room = size;
    *out = e;
    return 0;
}

/* Says whom this end talks to. */
i64 ratrain_fabric_connect(End *e, const void *name) {
    return fi_av_insert(e->av, name, 1, &e->peer, 0, 0) == 1 ? 0 : -FI_EINVAL;
}

/* A descriptor to sleep on, or a negative error: -FI_ENOSYS where there is none. */
i64 ratrain_fabric_fd(End *e) {
    int fd = -1;
    if (!e->sleeps) return -FI_ENOSYS;
    i64 rc = fi_control(&e->cq->fid, FI_GETWAIT, &fd);
    return rc ? rc : fd;
}

/* Serves the peer's reads. Returns 1 when it is safe to sleep on the descriptor. */
i64 ratrain_fabric_serve(End *e) {
    struct fi_cq_entry entry;
    struct fid *fids[1] = {&e->cq->fid};
    struct fi_cq_err_entry wrong;
    for (int i = 0; i < LOOKS; i++) {
        ssize_t n = fi_cq_read(e->cq, &entry, 1);
        if (n == -FI_EAVAIL) { memset(&wrong, 0, sizeof wrong); fi_cq_readerr(e->cq, &wrong, 0); }
        else if (n < 0) break;
    }
    return !e->sleeps || fi_trywait(e->device->fabric, fids, 1) == FI_SUCCESS;
}

/* True when the peer has closed its connection, so that nobody serves our reads any more. */
static int is_gone(int control) {
    struct pollfd p = {.fd = control, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL);
}

/* Waits until `*left` reads have completed; a negative error. */
static i64 drain(End *e, i64 *left, int control, i64 end_ms) {
    struct fi_cq_entry entry;
    struct fi_cq_err_entry wrong;
    for (i64 looks = 0; *left; looks++) {
        int asleep = looks >= LOOKS && e->sleeps;
        ssize_t n = asleep ? fi_cq_sread(e->cq, &entry, 1, 0, SLICE_MS) : fi_cq_read(e->cq, &entry, 1);
        if (n > 0) { (*left)--; looks = 0; }
        else if (n == -FI_EAVAIL) {
            memset(&wrong, 0, sizeof wrong);
            fi_cq_readerr(e->cq, &wrong, 0);
            return wrong.err ? -(i64)wrong.err : -FI_EIO;
        }
        else if (n != -FI_EAGAIN && n != -FI_EINTR) return n;
        else if (now_ms() > end_ms) return -FI_ETIMEDOUT;
        else if (looks < LOOKS) sched_yield();
        else if (is_gone(control)) return -FI_ECONNRESET;
        else if (!e->sleeps) usleep(NAP_US);
    }
    return 0;
}

/* Reads rows (address, length) from `there` of the peer's region `key` into `here`. Returns 0 when
 * all bytes have come. On an error, and when the connection `control` is closed by the peer, `*end` is
 * closed and set to null. */
i64 ratrain_fabric_read(End **end, i64 rows, const u64 *here, const u64 *there, void *desc, u64 key,
                        i64 control, i64 limit_ms) {
    End *e = *end;
    i64 stop_ms = now_ms() + limit_ms, flying = 0, rc = 0;
    size_t most = e->device->info->ep_attr->max_msg_size;
    for (i64 r = 0; r < rows && !rc; r++) {
        for (u64 at = 0; at < here[2 * r + 1] && !rc;) {
            u64 size = here[2 * r + 1] - at;
            if (size > most) size = most;
            if (flying == DEPTH && (rc = drain(e, &flying, (int)control, stop_ms))) break;
            ssize_t n = fi_read(e->ep, (void *)(uintptr_t)(here[2 * r] + at), size, desc, e->peer,
                                there[2 * r] + at, key, &e->context[flying]);
            if (n == -FI_EAGAIN) {
                if (now_ms() > stop_ms) rc = -FI_ETIMEDOUT;
                else if (is_gone((int)control)) rc = -FI_ECONNRESET;
                else if (flying) rc = drain(e, &flying, (int)control, stop_ms);
                else { ratrain_fabric_serve(e); sched_yield(); }
            } else if (n) rc = n;
            else { flying++; at += size; }
        }
    }
    if (!rc) rc = drain(e, &flying, (int)control, stop_ms);
    if (rc) { ratrain_fabric_close_end(e); *end = 0; }
    return rc;
}

void *ratrain_fabric_desc(struct fid_mr *mr) { return fi_mr_desc(mr); }
