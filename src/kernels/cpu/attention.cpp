#include "kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/checked.h"
#include "kernels/attention_rows.h"
#include "kernels/cpu/attention_isa.h"
#include "kernels/cpu/kv_store.h"

/// What the CPU rows of attention share: cutting a batch into tasks and handing them to threads. A task is one kv head
/// and some neighbouring queries of a sequence. When there are too few tasks for the threads, sequences with few
/// queries and many keys are cut at the fixed split positions too, and their states merged afterwards, in the order in
/// which one task would have merged them.
namespace tare::kernels {

namespace {

constexpr int64_t kTaskRows = 60;            // 10 register tiles of 6 rows; keeps a task's scratch inside L2
constexpr int64_t kSplitRows = 16;           // a sequence with more rows than this has work enough
constexpr int64_t kTasksPerThread = 8;       // fewer tasks leave threads idle at the end
constexpr int64_t kPartialBytes = 16 << 20;  // most room for states of split sequences
constexpr int64_t kLargestHead = 1024;       // the room of `finish`

struct Item {
  int32_t segment = 0;
  int32_t head = 0;
  int64_t query = 0;
  int64_t queries = 0;
  int64_t first_split = 0;
  int64_t last_split = 0;
  int64_t partial = -1;  // floats into the area of partial states; -1: finished by the task itself
};

int64_t group_of(const AttentionProblem& p) {
  return p.heads / p.kv_heads;
}
int64_t task_queries(const AttentionProblem& p) {
  return std::max<int64_t>(1, kTaskRows / group_of(p));
}
int64_t task_rows(const AttentionProblem& p) {
  return task_queries(p) * group_of(p);
}
int64_t split_queries(const AttentionProblem& p) {
  return std::min(task_queries(p), std::max<int64_t>(1, kSplitRows / group_of(p)));
}

struct Areas {
  int64_t thread_bytes = 0;
  int64_t items = 0;
  int64_t partial_floats = 0;
  int64_t bytes = 0;
};

Areas areas(const AttendIsa& isa, const AttentionProblem& p, int64_t max_queries, int64_t max_context, int threads) {
  Areas out;
  const int64_t row_bytes = 4 * state_floats(p.head_dim);
  out.thread_bytes = round_up(isa.scratch_bytes(task_rows(p), p.head_dim), 64) + round_up(task_rows(p) * row_bytes, 64);
  const int64_t splits = ceil_div(std::max<int64_t>(max_context, 1), kSplitTokens);
  const int64_t rows = std::min(max_queries, kTasksPerThread * threads * split_queries(p)) * p.heads;
  const int64_t bytes = rows > kPartialBytes / row_bytes / splits ? kPartialBytes : rows * splits * row_bytes;
  out.partial_floats = bytes / 4;
  out.items = max_queries * p.kv_heads + bytes / (row_bytes * group_of(p));
  out.bytes = 64 + threads * out.thread_bytes + out.items * static_cast<int64_t>(sizeof(Item)) + 64 + bytes;
  return out;
}

AttendSide make_side(const KvLayer& layer, const KvPageLayout& l, int64_t head, float static_scale) {
  AttendSide out;
  out.type = l.form.type;
  out.has_scale = l.form.has_scale();
  out.has_zero = l.form.has_zero();
  out.base = l.side == KvSide::kKey ? layer.k_side(0, head) : layer.v_side(0, head);
  out.block_bytes = layer.block_bytes;
  out.padded_dim = l.padded_dim;
  out.tile_bytes = l.code_bytes * kTile / l.block_size;
  out.scale_offset = l.scale_offset;
  out.zero_offset = l.zero_offset;
  out.static_scale = is_fp8(l.form.type) && !l.form.scale_in_page ? static_scale : 1.0f;
  out.max_code = l.form.type == KvType::kInt4 ? 15.0f : 255.0f;
  return out;
}

struct GatherContext {
  const KvLayer* layer = nullptr;
  const int32_t* blocks = nullptr;
  int64_t head = 0;
};

/// Rearranges up to 16 tokens of small blocks as one tile of a block of 16.
void gather_tile(const void* context, bool value_side, int64_t token, int64_t end, std::byte* page) {
  const auto& c = *static_cast<const GatherContext*>(context);
  const KvPageLayout& from = value_side ? c.layer->v : c.layer->k;
  const KvPageLayout to = kv_page_layout(from.form, from.side, from.head_dim, kTile);
  const int64_t element = is_integer(from.form.type) ? 1 : from.code_bytes / (from.block_size * from.head_dim);
  std::memset(page, 0, static_cast<size_t>(to.bytes));
  for (int64_t t = 0; t < std::min(kTile, end - token); ++t) {
    const int64_t block = c.blocks[(token + t) / from.block_size];
    const int64_t slot = (token + t) % from.block_size;
    const std::byte* side = value_side ? c.layer->v_side(block, c.head) : c.layer->k_side(block, c.head);
    for (int64_t i = 0; i < from.padded_dim; ++i) {
      const CodePlace source = code_place(from, slot, i);
      const CodePlace place = code_place(to, t, i);
      if (from.form.type == KvType::kInt4) {
        const auto code = (static_cast<uint32_t>(side[source.byte]) >> source.shift) & 15u;
        page[place.byte] |= static_cast<std::byte>(code << place.shift);
      } else {
        std::memcpy(page + place.byte, side + source.byte, static_cast<size_t>(element));
      }
    }
    if (from.form.has_scale()) std::memcpy(page + to.scale_offset + 2 * t, side + from.scale_offset + 2 * slot, 2);
    if (from.form.has_zero()) std::memcpy(page + to.zero_offset + 2 * t, side + from.zero_offset + 2 * slot, 2);
  }
}

/// Splits that the queries [query, query + queries) of a segment need.
void split_range(const AttentionProblem& p, const AttentionSegment& s, Item& item) {
  const int64_t position = s.position + item.query;
  const int64_t first = p.window > 0 ? std::max<int64_t>(0, position - p.window + 1) : 0;
  item.first_split = first / kSplitTokens;
  item.last_split = ceil_div(position + item.queries, kSplitTokens);
}

void run(const AttendIsa& isa, const AttentionProblem& p, const KvLayer& layer,
         std::span<const AttentionSegment> segments, std::span<std::byte> workspace, ThreadPool& pool) {
  const int64_t group = group_of(p);
  const int64_t state = state_floats(p.head_dim);
  int64_t queries = 0;
  int64_t context = 1;
  int64_t tasks = 0;
  for (const AttentionSegment& s : segments) {
    queries += s.count;
    context = std::max(context, s.position + s.count);
    tasks += ceil_div(s.count, task_queries(p)) * p.kv_heads;
  }
  const Areas area = areas(isa, p, queries, context, pool.size());
  auto* at =
      reinterpret_cast<std::byte*>(round_up(static_cast<int64_t>(reinterpret_cast<uintptr_t>(workspace.data())), 64));
  std::byte* const threads_area = at;
  at += pool.size() * area.thread_bytes;
  auto* const partials = reinterpret_cast<float*>(at);
  at += round_up(4 * area.partial_floats, 64);
  auto* const items = reinterpret_cast<Item*>(at);

  // 1. The work list.
  int64_t count = 0;
  int64_t partial_used = 0;
  const bool few_tasks = pool.size() > 1 && tasks < kTasksPerThread * pool.size();
  for (size_t i = 0; i < segments.size(); ++i) {
    const AttentionSegment& s = segments[i];
    const int64_t blocks = ceil_div(s.count, task_queries(p));
    // Late queries have the most keys: first, so that threads end together.
    for (int64_t b = blocks; b-- > 0;) {
      Item item;
      item.segment = static_cast<int32_t>(i);
      item.query = b * task_queries(p);
      item.queries = std::min(task_queries(p), s.count - item.query);
      split_range(p, s, item);
      const int64_t splits = item.last_split - item.first_split;
      const int64_t floats = splits * item.queries * group * state;
      const bool cut = few_tasks && splits > 1 && s.count <= split_queries(p);
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        item.head = static_cast<int32_t>(h);
        if (cut && partial_used + floats <= area.partial_floats) {
          for (int64_t split = 0; split < splits; ++split) {
            Item part = item;
            part.first_split = item.first_split + split;
            part.last_split = part.first_split + 1;
            part.partial = partial_used + split * item.queries * group * state;
            items[count++] = part;
          }
          partial_used += floats;
        } else {
          items[count++] = item;
        }
      }
    }
  }

  // 2. The tasks.
  const auto finish = [&](const Item& item, const float* states, int64_t splits, int64_t stride) {
    const AttentionSegment& s = segments[static_cast<size_t>(item.segment)];
    const float scale = make_side(layer, layer.v, item.head, layer.v_static_scale(item.head)).static_scale;
    for (int64_t r = 0; r < item.queries * group; ++r) {
      float* out = s.out + (item.query + r / group) * s.out_stride + (item.head * group + r % group) * p.head_dim;
      isa.finish(states + r * state, splits, stride, p.head_dim, scale, out);
    }
  };
  const auto run_item = [&](const Item& item, std::byte* scratch) {
    const AttentionSegment& s = segments[static_cast<size_t>(item.segment)];
    AttendTask task;
    task.k = make_side(layer, layer.k, item.head, layer.k_static_scale(item.head));
    task.v = make_side(layer, layer.v, item.head, layer.v_static_scale(item.head));
    task.blocks = s.blocks;
    task.block_size = p.block_size;
    task.head_dim = p.head_dim;
    task.group = group;
    task.q = s.q + item.query * s.q_stride + item.head * group * p.head_dim;
    task.q_stride = s.q_stride;
    task.queries = item.queries;
    task.position = s.position + item.query;
    task.scale = p.scale;
    task.soft_cap = p.soft_cap;
    task.window = p.window;
    const GatherContext gather{&layer, s.blocks, item.head};
    if (p.block_size < kTile) {
      task.gather_tile = gather_tile;
      task.gather_context = &gather;
    }
    float* own = reinterpret_cast<float*>(scratch + area.thread_bytes - round_up(task_rows(p) * state * 4, 64));
    float* states = item.partial >= 0 ? partials + item.partial : own;
    isa.attend(task, item.first_split, item.last_split, states, scratch);
    if (item.partial < 0) finish(item, states, 1, 0);
  };
  std::atomic<int64_t> next{0};
  pool.share([&](int thread) {
    std::byte* scratch = threads_area + thread * area.thread_bytes;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) run_item(items[i], scratch);
  });

  // 3. The merges of split sequences. Few rows: not worth a second round of the pool.
  for (int64_t i = 0; i < count;) {
    if (items[i].partial < 0) {
      ++i;
      continue;
    }
    int64_t last = i + 1;
    while (last < count && items[last].partial >= 0 && items[last].segment == items[i].segment &&
           items[last].head == items[i].head) {
      ++last;
    }
    finish(items[i], partials + items[i].partial, last - i, items[i].queries * group * state);
    i = last;
  }
}

Verdict can_implement(const AttentionProblem& p, const machine::Capabilities&) {
  if (p.head_dim > kLargestHead) return Verdict::no("head_dim above 1024");
  return Verdict::yes();
}

template <const AttendIsa& isa>
int64_t workspace_bytes(const AttentionProblem& p, int64_t max_queries, int64_t max_context, int threads) {
  return areas(isa, p, max_queries, max_context, threads).bytes;
}

template <const AttendIsa& isa>
void run_isa(const AttentionProblem& p, const KvLayer& layer, std::span<const AttentionSegment> segments,
             std::span<std::byte> workspace, ThreadPool& pool) {
  run(isa, p, layer, segments, workspace, pool);
}

template <const KvRow& row>
void store_isa(const KvLayer& layer, std::span<const KvAppend> appends, ThreadPool& pool) {
  store_kv(row, layer, appends, pool);
}

}  // namespace

const AttentionKernel kAttentionAvx2{
    .name = "attention_avx2",
    .isa = machine::Isa::kAvx2,
    .can_implement = can_implement,
    .workspace_bytes = workspace_bytes<kAttendAvx2>,
    .run = run_isa<kAttendAvx2>,
    .store = store_isa<kKvRowAvx2>,
};

const AttentionKernel kAttentionAvx512Vnni{
    .name = "attention_avx512vnni",
    .isa = machine::Isa::kAvx512Vnni,
    .can_implement = can_implement,
    .workspace_bytes = workspace_bytes<kAttendAvx512Vnni>,
    .run = run_isa<kAttendAvx512Vnni>,
    .store = store_isa<kKvRowAvx512Vnni>,
};

}  // namespace tare::kernels
