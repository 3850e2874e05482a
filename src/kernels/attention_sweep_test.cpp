#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "kernels/attention.h"
#include "kernels/attention_rows.h"

/// Every attention kernel against the reference, over forms, head sizes, group ratios, windows, chunks and threads.
namespace tare::kernels {
namespace {

const std::vector<KvForm> kForms = {{KvType::kF32},        {KvType::kF16},  {KvType::kBF16},
                                    {KvType::kE4M3},       {KvType::kE5M2}, {KvType::kE4M3, true},
                                    {KvType::kE5M2, true}, {KvType::kInt8}, {KvType::kInt4}};

std::vector<const AttentionKernel*> kernels_here() {
  std::vector<const AttentionKernel*> out;
  for (const AttentionKernel* kernel : builtin_attention_kernels()) {
    if (kernel->isa <= machine::detect_isa() && kernel->isa != machine::Isa::kReference) out.push_back(kernel);
  }
  return out;
}

std::string name(const KvForm& form) {
  return std::string(kv_type_name(form.type)) + (form.scale_in_page ? "+page" : "");
}

/// One sequence with random keys and values, and queries at all positions.
struct Sequence {
  AttentionProblem p;
  int64_t tokens;
  KvLayer layer;
  std::vector<float> q, k, v;
  std::vector<float> k_scale, v_scale;
  std::vector<int32_t> blocks;
  std::vector<std::byte> memory;

  Sequence(AttentionProblem problem, int64_t count, uint32_t seed, float mean = 0.3f) : p(problem), tokens(count) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(static_cast<size_t>(tokens * p.heads * p.head_dim));
    k.resize(static_cast<size_t>(tokens * p.kv_heads * p.head_dim));
    v.resize(k.size());
    // Queries are multiples of 1/127 of each head's largest: the 8 bits that int4 keys meet hold them exactly, so that
    // the sweep sees the arithmetic and not this rounding.
    for (size_t i = 0; i < q.size(); ++i) {
      const float code = std::clamp(std::nearbyint(35 * normal(random)), -127.0f, 127.0f);
      q[i] = 0.0417f * (i % static_cast<size_t>(p.head_dim) == 0 ? 127.0f : code);
    }
    for (float& x : k) x = normal(random) + mean;
    for (float& x : v) x = normal(random) - mean;
    for (int64_t h = 0; h < p.kv_heads; ++h) {
      k_scale.push_back(0.01f * static_cast<float>(h + 1));
      v_scale.push_back(0.02f);
    }
    layer.kv_heads = p.kv_heads;
    layer.k = kv_page_layout(p.k, KvSide::kKey, p.head_dim, p.block_size);
    layer.v = kv_page_layout(p.v, KvSide::kValue, p.head_dim, p.block_size);
    layer.block_bytes = p.kv_heads * (layer.k.bytes + layer.v.bytes);
    layer.k_scale = k_scale;
    layer.v_scale = v_scale;
    const int64_t used = tokens / p.block_size + 1;
    // Free blocks between the used ones, full of NaN in every form.
    memory.assign(static_cast<size_t>(2 * used * layer.block_bytes + 64), std::byte{0xff});
    layer.base = memory.data();
    for (int64_t b = 0; b < used; ++b) blocks.push_back(static_cast<int32_t>(2 * b + 1));
    std::shuffle(blocks.begin(), blocks.end(), random);
  }

  int64_t q_width() const { return p.heads * p.head_dim; }
  int64_t kv_width() const { return p.kv_heads * p.head_dim; }
  KvAppend append(int64_t from, int64_t count) const {
    return {
        k.data() + from * kv_width(), kv_width(), v.data() + from * kv_width(), kv_width(), count, from, blocks.data()};
  }
  AttentionSegment segment(int64_t from, int64_t count, float* out) const {
    return {q.data() + from * q_width(), q_width(), count, from, blocks.data(), out, q_width()};
  }
};

void run(const AttentionKernel& kernel, const Sequence& s, const std::vector<AttentionSegment>& segments,
         ThreadPool& pool) {
  int64_t queries = 0;
  int64_t context = 0;
  for (const AttentionSegment& part : segments) {
    queries += part.count;
    context = std::max(context, part.position + part.count);
  }
  const int64_t bytes = kernel.workspace_bytes(s.p, queries, context, pool.size());
  std::vector<std::byte> workspace(static_cast<size_t>(bytes) + 64, std::byte{0xee});
  kernel.run(s.p, s.layer, segments, std::span(workspace).first(static_cast<size_t>(bytes)), pool);
  for (size_t i = static_cast<size_t>(bytes); i < workspace.size(); ++i) ASSERT_EQ(workspace[i], std::byte{0xee});
}

std::vector<float> run_chunks(const AttentionKernel& kernel, const Sequence& s, int64_t first, int64_t chunk,
                              ThreadPool& pool) {
  std::vector<float> out(static_cast<size_t>(s.tokens * s.q_width()));
  for (int64_t from = first; from < s.tokens; from += chunk) {
    const int64_t count = std::min(chunk, s.tokens - from);
    run(kernel, s, {s.segment(from, count, out.data() + from * s.q_width())}, pool);
  }
  return out;
}

/// Largest |v| that a query may see: the unit of the error bounds.
float largest_value(const Sequence& s) {
  float out = 0;
  for (const float x : s.v) out = std::max(out, std::fabs(x));
  return out;
}

/// f32 chains of d steps on scores of some tens; 15-bit operands beside int8; 8-bit weights beside int4 values: over n
/// keys an error of about sqrt(n) / 2 / 255 of the largest weight.
float tolerance(const Sequence& s) {
  const float unit = s.p.v.type == KvType::kInt4                             ? 2e-2f
                     : is_integer(s.p.v.type) || s.p.k.type == KvType::kInt8 ? 2e-4f
                                                                             : 2e-5f;
  return largest_value(s) * unit;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float bound, const std::string& what) {
  float worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what << " at " << i;
    worst = std::max(worst, std::fabs(got[i] - want[i]));
  }
  EXPECT_LE(worst, bound) << what;
}

TEST(AttentionSweep, EqualsTheReference) {
  ThreadPool pool(2);
  struct Shape {
    int64_t heads, kv_heads, head_dim, block_size, tokens, window;
    float soft_cap;
  };
  const std::vector<Shape> shapes = {
      {4, 4, 64, 16, 150, 0, 0}, {14, 2, 64, 16, 70, 0, 0},  {9, 3, 80, 32, 140, 0, 0}, {8, 1, 128, 16, 137, 50, 0},
      {3, 3, 20, 8, 40, 0, 20},  {2, 1, 256, 16, 33, 0, 30}, {6, 2, 96, 4, 50, 17, 0},  {5, 1, 4, 64, 270, 128, 0},
      {1, 1, 1, 1, 20, 0, 0},    {71, 1, 64, 128, 20, 0, 0}};
  for (const AttentionKernel* kernel : kernels_here()) {
    int64_t ran = 0;
    for (const Shape& shape : shapes) {
      for (const KvForm& k : kForms) {
        for (const KvForm& v : kForms) {
          if (!(k == v) && !(k.type == KvType::kInt8) && !(v.type == KvType::kInt4)) continue;
          const AttentionProblem p{.heads = shape.heads,
                                   .kv_heads = shape.kv_heads,
                                   .head_dim = shape.head_dim,
                                   .scale = 1 / std::sqrt(static_cast<float>(shape.head_dim)),
                                   .soft_cap = shape.soft_cap,
                                   .window = shape.window,
                                   .k = k,
                                   .v = v,
                                   .block_size = shape.block_size};
          const machine::Capabilities caps = machine::capabilities();
          ASSERT_TRUE(kernel->can_implement(p, caps).ok);
          Sequence s(p, shape.tokens, 7);
          const KvAppend all = s.append(0, s.tokens);
          kernel->store(s.layer, {&all, 1}, pool);
          // All queries run; the slow reference answers for the last ones, which see the most.
          std::vector<float> got = run_chunks(*kernel, s, 0, s.tokens, pool);
          std::vector<float> want(got.size());
          const int64_t first = std::max<int64_t>(0, s.tokens - 3);
          run(kAttentionReference, s, {s.segment(first, s.tokens - first, want.data() + first * s.q_width())}, pool);
          std::fill_n(got.begin(), first * s.q_width(), 0.0f);
          expect_near(
              got, want, tolerance(s),
              std::string(kernel->name) + " " + name(k) + "," + name(v) + " d " + std::to_string(shape.head_dim));
          ++ran;
        }
      }
    }
    EXPECT_GT(ran, 0);
    std::printf("%s: %lld cases\n", std::string(kernel->name).c_str(), static_cast<long long>(ran));
  }
}

TEST(AttentionSweep, StoreWritesTheBytesOfTheReference) {
  ThreadPool pool(2);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  // Also ties of f16 and of integer codes, subnormals, both zeros, what leaves f16.
  const std::vector<float> odd = {0.0f,
                                  -0.0f,
                                  1.0f + 0x1p-11f,
                                  1.0f + 0x3p-11f,
                                  0x1p-25f,
                                  0x3p-25f,
                                  -0x1p-14f,
                                  65519.f,
                                  65520.f,
                                  -7e4f,
                                  1e30f,
                                  1e-30f,
                                  kNan,
                                  -kNan,
                                  kInf,
                                  -kInf,
                                  0.5f,
                                  7.5f,
                                  2049.0f,
                                  -3.0f};
  for (const AttentionKernel* kernel : kernels_here()) {
    for (const KvForm& form : kForms) {
      for (const int64_t dim : {64, 72, 20, 3}) {
        for (const int64_t block_size : {16, 64, 4}) {
          const AttentionProblem p{
              .heads = 2, .kv_heads = 2, .head_dim = dim, .k = form, .v = form, .block_size = block_size};
          Sequence s(p, 200, 19);
          std::mt19937 random(5);
          for (int64_t t = 0; t < s.tokens; ++t) {
            for (std::vector<float>* side : {&s.k, &s.v}) {
              float* x = side->data() + t * s.kv_width();
              // Some rows hold one odd value, some nothing but two of them, some have 0 as their smallest.
              const float a = odd[random() % odd.size()], b = odd[random() % odd.size()];
              if (t % 4 == 1) x[static_cast<int64_t>(random()) % s.kv_width()] = a;
              for (int64_t i = 0; i < s.kv_width(); ++i) {
                if (t % 4 == 2) x[i] = i % 3 == 0 ? a : b;
                if (t % 4 == 3) x[i] = i % 2 == 0 ? std::fabs(x[i]) : random() % 2 == 0 ? 0.0f : -0.0f;
              }
            }
          }
          const std::vector<std::byte> empty = s.memory;
          const auto stored = [&](const AttentionKernel& by) {
            std::copy(empty.begin(), empty.end(), s.memory.begin());
            for (const KvAppend& piece : {s.append(0, 13), s.append(13, 1), s.append(14, 186)}) {
              by.store(s.layer, {&piece, 1}, pool);
            }
            return s.memory;
          };
          const std::vector<std::byte> want = stored(kAttentionReference);
          const std::vector<std::byte> got = stored(*kernel);
          EXPECT_TRUE(got == want) << kernel->name << " " << name(form) << " d " << dim << " block " << block_size;
        }
      }
    }
  }
}

TEST(AttentionSweep, EachQueryIsTheSameBitsInAnyCompany) {
  const auto pool1 = std::make_unique<ThreadPool>(1);
  const auto pool3 = std::make_unique<ThreadPool>(3);
  for (const AttentionKernel* kernel : kernels_here()) {
    for (const KvForm& form : kForms) {
      for (const int64_t window : {0, 600}) {
        // 2300 tokens: three splits. The first 1500 are prompt, then chunks of odd sizes.
        const AttentionProblem p{.heads = 6,
                                 .kv_heads = 2,
                                 .head_dim = 40,
                                 .scale = 0.16f,
                                 .window = window,
                                 .k = form,
                                 .v = form,
                                 .block_size = 16};
        Sequence s(p, 2300, 11);
        const KvAppend all = s.append(0, s.tokens);
        kernel->store(s.layer, {&all, 1}, *pool1);
        const std::vector<float> want = run_chunks(*kernel, s, 2250, 50, *pool1);
        const std::string what = std::string(kernel->name) + " " + name(form);
        for (const int64_t chunk : {1, 7, 50}) {
          for (ThreadPool* pool : {pool1.get(), pool3.get()}) {
            const std::vector<float> got = run_chunks(*kernel, s, 2250, chunk, *pool);
            ASSERT_EQ(std::memcmp(got.data(), want.data(), 4 * want.size()), 0)
                << what << " chunk " << chunk << " threads " << pool->size();
          }
        }
        // All of it as one ragged batch.
        std::vector<float> got(want.size());
        std::vector<AttentionSegment> segments;
        for (int64_t from = 2250, count = 1; from < s.tokens; from += count, count = count % 5 + 1) {
          count = std::min(count, s.tokens - from);
          segments.push_back(s.segment(from, count, got.data() + from * s.q_width()));
        }
        run(*kernel, s, segments, *pool3);
        ASSERT_EQ(std::memcmp(got.data(), want.data(), 4 * want.size()), 0) << what << " ragged";
      }
    }
  }
}

TEST(AttentionSweep, InstructionSetsAgreeBitForBit) {
  const auto kernels = kernels_here();
  if (kernels.size() < 2) GTEST_SKIP() << "skipped: this CPU has one instruction set to compare";
  ThreadPool pool(1);
  for (const KvForm& form : kForms) {
    for (const float soft_cap : {0.0f, 15.0f}) {
      const AttentionProblem p{.heads = 7,
                               .kv_heads = 1,
                               .head_dim = 72,
                               .scale = 0.12f,
                               .soft_cap = soft_cap,
                               .k = form,
                               .v = form,
                               .block_size = 16};
      Sequence s(p, 400, 3);
      const KvAppend all = s.append(0, s.tokens);
      kernels[0]->store(s.layer, {&all, 1}, pool);
      const std::vector<float> a = run_chunks(*kernels[0], s, 0, s.tokens, pool);
      const std::vector<float> b = run_chunks(*kernels[1], s, 0, s.tokens, pool);
      EXPECT_EQ(std::memcmp(a.data(), b.data(), 4 * a.size()), 0) << name(form);
    }
  }
}

TEST(AttentionSweep, AnAccidentStaysWithTheQueriesThatSeeIt) {
  ThreadPool pool(1);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const AttentionKernel* kernel : kernels_here()) {
    for (const KvForm& form : kForms) {
      for (const float bad : {kNan, kInf, -kInf}) {
        for (const bool in_key : {true, false}) {
          const AttentionProblem p{
              .heads = 2, .kv_heads = 1, .head_dim = 24, .scale = 0.2f, .window = 20, .k = form, .v = form};
          Sequence s(p, 60, 5);
          (in_key ? s.k : s.v)[20 * 24 + 3] = bad;
          const KvAppend all = s.append(0, s.tokens);
          kernel->store(s.layer, {&all, 1}, pool);
          const std::vector<float> out = run_chunks(*kernel, s, 0, s.tokens, pool);
          for (int64_t i = 0; i < s.tokens; ++i) {
            const float* row = out.data() + i * s.q_width();
            const bool sees = i >= 20 && i < 40;
            const bool finite = std::all_of(row, row + s.q_width(), [](float x) { return std::isfinite(x); });
            // -inf in one key of an f16 cache is a score of +-inf: softmax may rightly give it weight 0.
            if (sees && in_key && std::isinf(bad)) continue;
            ASSERT_EQ(finite, !sees) << kernel->name << " " << name(form) << " query " << i << " key " << in_key;
          }
        }
      }
      // A NaN in a query concerns that query alone.
      const AttentionProblem p{.heads = 2, .kv_heads = 1, .head_dim = 24, .scale = 0.2f, .k = form, .v = form};
      Sequence s(p, 60, 5);
      s.q[static_cast<size_t>(30 * s.q_width() + 24)] = kNan;
      const KvAppend all = s.append(0, s.tokens);
      kernel->store(s.layer, {&all, 1}, pool);
      const std::vector<float> out = run_chunks(*kernel, s, 0, s.tokens, pool);
      for (int64_t i = 0; i < s.tokens * 2; ++i) {
        ASSERT_EQ(std::isfinite(out[static_cast<size_t>(i * 24)]), i != 61) << kernel->name << " " << name(form);
      }
    }
  }
}

}  // namespace
}  // namespace tare::kernels
