/* Which parts of which files the tasks of a step read. */
#include "step_files.h"

int64_t bytes_in_files(const Batch *b, const Task *task)
{
    const Item *item = &b->items[task->item];
    int64_t size = (item->ref.fd >= 0 ? TYPE_SIZE[item->ref.type] : 0) + (item->cand.fd >= 0 ? TYPE_SIZE[item->cand.type] : 0);
    return size * (int64_t)task->n;
}

/* The bytes of a task in a file. */
typedef struct {
    int64_t from, to;
} Bytes;

static Bytes bytes_of(const Side *side, const Task *task)
{
    const int64_t size = TYPE_SIZE[side->type], from = side->place + task->start * size;
    return (Bytes){from, from + (int64_t)task->n * size};
}

static Window *window_of(Windows *all, int fd)
{
    for (int i = 0; i < all->count; i++)
        if (all->window[i].fd == fd)
            return &all->window[i];
    return NULL;
}

/* Kernels take elements where an array may hold them: a file may hold them anywhere. */
static int can_be_mapped(const Side *side)
{
    return side->fd >= 0 && side->place % TYPE_SIZE[side->type] == 0;
}

/* Widen the window of a side's file so that it holds a task. */
static void widen_window(Windows *all, const Side *side, const Task *task)
{
    const Bytes bytes = bytes_of(side, task);
    if (!can_be_mapped(side))
        return;
    Window *w = window_of(all, side->fd);
    if (w) {
        w->from = bytes.from < w->from ? bytes.from : w->from;
        w->to = bytes.to > w->to ? bytes.to : w->to;
    } else if (all->count < MOST_FILES) {
        all->window[all->count++] = (Window){.fd = side->fd, .from = bytes.from, .to = bytes.to};
    }
}

static void use_window(Windows *all, Side *side)
{
    const Window *w = can_be_mapped(side) ? window_of(all, side->fd) : NULL;
    side->mapped = w && w->bytes ? (int64_t)(intptr_t)w->bytes - w->from : 0;
}

void open_windows(Batch *b, size_t end, Windows *all)
{
    all->count = 0;
    for (size_t t = b->next; t < end; t++) {
        widen_window(all, &b->items[b->tasks[t].item].ref, &b->tasks[t]);
        widen_window(all, &b->items[b->tasks[t].item].cand, &b->tasks[t]);
    }
    for (int i = 0; i < all->count; i++)
        window_open(&all->window[i], all->window[i].fd, all->window[i].from, all->window[i].to);
    for (size_t t = b->next; t < end && all->count; t++) {
        use_window(all, &b->items[b->tasks[t].item].ref);
        use_window(all, &b->items[b->tasks[t].item].cand);
    }
}

/* Tell the items whose bytes could not be read. */
static void blame(Batch *b, size_t end, const Window *w, int64_t first, int why)
{
    for (size_t t = b->next; t < end; t++) {
        Item *item = &b->items[b->tasks[t].item];
        for (int side = 0; side < 2; side++) {
            const Side *read = side ? &item->cand : &item->ref;
            if (read->fd == w->fd && read->mapped && bytes_of(read, &b->tasks[t]).to > first && !item->error) {
                item->error = why;
                item->error_side = side;
            }
        }
    }
}

void close_windows(Batch *b, size_t end, Windows *all)
{
    for (int i = 0; i < all->count; i++) {
        int why;
        int64_t first = window_close(&all->window[i], &why);
        if (first >= 0)
            blame(b, end, &all->window[i], first, why);
    }
    for (size_t t = b->next; t < end && all->count; t++)
        b->items[b->tasks[t].item].ref.mapped = b->items[b->tasks[t].item].cand.mapped = 0;
}
