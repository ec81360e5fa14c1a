// Wrong arguments are named and leave outputs untouched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "tests/unit/kernels/problem.h"

namespace trimtab::testing {
namespace {

using ::testing::HasSubstr;

struct Wrong {
  std::string cause;
  trimtab_kernel_status status;
  std::function<void(trimtab_attention&)> spoil;
};

TEST(Validate, ForwardNamesTheCauseAndWritesNothing) {
  const Wrong cases[] = {
      {"struct_size", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.struct_size = sizeof a + 8; }},
      {"struct_size", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.struct_size = 0; }},
      {"batch is -1", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.batch = -1; }},
      {"heads is 0", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.heads = 0; }},
      {"kv_heads is 3", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.kv_heads = 3; }},
      {"not a multiple", TRIMTAB_KERNEL_BAD_ARGUMENT,
       [](auto& a) {
         a.heads = 3;
         a.kv_heads = 2;
       }},
      {"queries", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.queries = INT64_MAX; }},
      {"keys", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.keys = -5; }},
      {"head_dim", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.head_dim = 0; }},
      {"value_dim", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.value_dim = 1 << 20; }},
      {"kind", TRIMTAB_KERNEL_UNSUPPORTED, [](auto& a) { a.kind = static_cast<trimtab_attention_kind>(9); }},
      {"storage", TRIMTAB_KERNEL_UNSUPPORTED, [](auto& a) { a.storage = static_cast<trimtab_storage>(-1); }},
      {"dtype", TRIMTAB_KERNEL_UNSUPPORTED, [](auto& a) { a.dtype = static_cast<trimtab_dtype>(3); }},
      {"causal", TRIMTAB_KERNEL_UNSUPPORTED, [](auto& a) { a.causal = 3; }},
      {"mask kind", TRIMTAB_KERNEL_UNSUPPORTED, [](auto& a) { a.mask_kind = static_cast<trimtab_mask_kind>(7); }},
      {"mask.data is NULL", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.mask_kind = TRIMTAB_MASK_BOOL; }},
      {"scale", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.scale = NAN; }},
      {"beta", TRIMTAB_KERNEL_BAD_ARGUMENT,
       [](auto& a) {
         a.kind = TRIMTAB_ATTENTION_PAPER;
         a.beta = 0.5f;
       }},
      {"q.data is NULL", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.q.data = nullptr; }},
      {"k.data is NULL", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.k.data = nullptr; }},
      {"v.data is NULL", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.v.data = nullptr; }},
      {"nothing is asked for", TRIMTAB_KERNEL_BAD_ARGUMENT,
       [](auto& a) { a.out.data = a.out_low.data = a.lse.data = nullptr; }},
      {"beside out_low", TRIMTAB_KERNEL_BAD_ARGUMENT, [](auto& a) { a.out.data = nullptr; }},
  };
  for (const Wrong& wrong : cases) {
    std::mt19937 random(81);
    Problem p({1, 2, 2, 4, 4, 4, 4}, TRIMTAB_F32);
    p.Fill(random);
    const auto before = p.out.bytes();
    trimtab_attention a = p.call;
    a.q = p.q.view();
    a.k = p.k.view();
    a.v = p.v.view();
    a.out = p.out.mutable_view();
    a.out_low = p.low.mutable_view();
    a.lse = p.lse.mutable_view();
    wrong.spoil(a);
    EXPECT_EQ(trimtab_attention_forward(&a), wrong.status) << wrong.cause;
    EXPECT_THAT(trimtab_kernel_error(), HasSubstr(wrong.cause));
    EXPECT_EQ(p.out.bytes(), before);
  }
  EXPECT_EQ(trimtab_attention_forward(nullptr), TRIMTAB_KERNEL_BAD_ARGUMENT);
}

TEST(Validate, SuccessClearsTheError) {
  EXPECT_EQ(trimtab_attention_forward(nullptr), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_STRNE(trimtab_kernel_error(), "");
  Problem p({1, 1, 1, 2, 2, 2, 2}, TRIMTAB_F32);
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  EXPECT_STREQ(trimtab_kernel_error(), "");
}

// An older caller's shorter struct means the later fields are 0.
TEST(Validate, OlderCallersGetDefaults) {
  std::mt19937 random(82);
  Problem p({1, 1, 1, 4, 4, 4, 4}, TRIMTAB_F32);
  p.Fill(random);
  trimtab_attention a = p.call;
  a.q = p.q.view();
  a.k = p.k.view();
  a.v = p.v.view();
  a.out = p.out.mutable_view();
  a.stats = reinterpret_cast<trimtab_head_stats*>(uintptr_t{8});  // beyond the size given: must not be read
  a.struct_size = offsetof(trimtab_attention, stats);
  ASSERT_EQ(trimtab_attention_forward(&a), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
  EXPECT_LE(MaxError(p.out, ComputeReference(p, false).out), 3e-6);
}

TEST(Validate, EmptyCallsAreFine) {
  Problem p({1, 1, 1, 1, 1, 4, 4}, TRIMTAB_F32);
  trimtab_attention a = p.call;
  a.batch = 0;
  EXPECT_EQ(trimtab_attention_forward(&a), TRIMTAB_KERNEL_OK);
  a.batch = 1;
  a.queries = 0;
  EXPECT_EQ(trimtab_attention_forward(&a), TRIMTAB_KERNEL_OK);
  trimtab_delta_preserve d{};
  d.struct_size = sizeof d;
  d.heads = d.columns = 1;
  EXPECT_EQ(trimtab_delta_preserving_step(&d), TRIMTAB_KERNEL_OK);
}

TEST(Validate, BackwardProbeAndOthers) {
  Problem p({1, 1, 1, 2, 2, 2, 2}, TRIMTAB_F32);
  trimtab_attention_grad g{};
  g.forward = p.call;
  EXPECT_EQ(trimtab_attention_backward(&g), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_THAT(trimtab_kernel_error(), HasSubstr("q.data"));
  g.forward.q = g.forward.k = g.forward.v = p.q.view();
  g.forward.out = p.out.mutable_view();
  EXPECT_EQ(trimtab_attention_backward(&g), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_THAT(trimtab_kernel_error(), HasSubstr("lse"));
  g.forward.lse = p.lse.mutable_view();
  EXPECT_EQ(trimtab_attention_backward(&g), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_THAT(trimtab_kernel_error(), HasSubstr("grad_out"));
  g.grad_out = p.grad_out.view();
  g.grad_mask = p.grad_q.mutable_view();
  EXPECT_EQ(trimtab_attention_backward(&g), TRIMTAB_KERNEL_UNSUPPORTED);
  g.forward.struct_size = 16;
  EXPECT_EQ(trimtab_attention_backward(&g), TRIMTAB_KERNEL_BAD_ARGUMENT);

  trimtab_probe probe{};
  probe.attention = p.call;
  probe.attention.q = probe.attention.k = p.q.view();
  EXPECT_EQ(trimtab_attention_probe(&probe), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_THAT(trimtab_kernel_error(), HasSubstr("stats"));
  probe.attention.stats = p.stats.data();
  EXPECT_EQ(trimtab_attention_probe(&probe), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_THAT(trimtab_kernel_error(), HasSubstr("row_step"));

  trimtab_spectral s{};
  s.struct_size = sizeof s;
  s.rows = 6;
  s.columns = 4;
  s.slices = 4;
  EXPECT_EQ(trimtab_spectral_norm(&s), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_THAT(trimtab_kernel_error(), HasSubstr("slices"));

  trimtab_activation_stats stats{};
  EXPECT_EQ(trimtab_activation(TRIMTAB_F32, nullptr, 3, 1.0f, &stats), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_EQ(trimtab_activation(TRIMTAB_F32, &stats, 1, NAN, &stats), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_EQ(trimtab_activation(TRIMTAB_F32, &stats, 1, 1.0f, nullptr), TRIMTAB_KERNEL_BAD_ARGUMENT);
}

}  // namespace
}  // namespace trimtab::testing
