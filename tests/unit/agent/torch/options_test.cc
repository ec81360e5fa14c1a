#include "agent/torch/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace trimtab::agent {
namespace {

TEST(OptionsTest, DefaultsAreSafe) {
  unsetenv("TRIMTAB_EMULATE_STORAGE");
  ShimOptions options;
  std::string error;
  ASSERT_TRUE(ParseOptions("", &options, &error)) << error;
  EXPECT_EQ(options.mode, TRIMTAB_MODE_OBSERVE);
  EXPECT_EQ(options.storage, TRIMTAB_STORE_SAME);
  EXPECT_FALSE(options.act);
}

TEST(OptionsTest, ReadsEveryKey) {
  ShimOptions o;
  std::string error;
  ASSERT_TRUE(ParseOptions(
      R"({"run":"r","ring_dir":"/d","rank":3,"world_size":4,"local_rank":1,"ring_bytes":65536,"act":true,"lazy":true,
          "mode":"paper","start_step":10,"sample_every_steps":5,"probe_rows":16,"emulate_storage":"e4m3",
          "overhead_budget":0.02,"shadow_tolerance":2,"info":{"a":1}})",
      &o, &error))
      << error;
  EXPECT_EQ(o.run + o.ring_dir, "r/d");
  EXPECT_EQ(o.rank * 100 + o.world_size * 10 + o.local_rank, 341U);
  EXPECT_EQ(o.ring_bytes, 65536U);
  EXPECT_TRUE(o.act && o.lazy);
  EXPECT_EQ(o.mode, TRIMTAB_MODE_PAPER);
  EXPECT_EQ(o.start_step, 10U);
  EXPECT_EQ(o.sample_every_steps, 5U);
  EXPECT_EQ(o.probe_rows, 16U);
  EXPECT_EQ(o.storage, TRIMTAB_STORE_E4M3);
  EXPECT_EQ(o.overhead_budget, 0.02);
  EXPECT_EQ(o.shadow_tolerance, 2);
  EXPECT_EQ(o.info.Dump(), R"({"a":1})");
}

TEST(OptionsTest, TheStorageMayComeFromTheEnvironment) {
  setenv("TRIMTAB_EMULATE_STORAGE", "bf16", 1);
  ShimOptions options;
  std::string error;
  EXPECT_TRUE(ParseOptions(R"({"emulate_storage":""})", &options, &error)) << error;
  EXPECT_EQ(options.storage, TRIMTAB_STORE_BF16);
  EXPECT_TRUE(ParseOptions(R"({"emulate_storage":"fp16"})", &options, &error)) << error;
  EXPECT_EQ(options.storage, TRIMTAB_STORE_FP16);
  setenv("TRIMTAB_EMULATE_STORAGE", "int4", 1);
  EXPECT_FALSE(ParseOptions("{}", &options, &error));
  EXPECT_NE(error.find("int4"), std::string::npos);
  unsetenv("TRIMTAB_EMULATE_STORAGE");
}

TEST(OptionsTest, NullMeansTheDefault) {
  ShimOptions options;
  std::string error;
  EXPECT_TRUE(ParseOptions(R"({"rank":null,"run":null,"info":null})", &options, &error)) << error;
}

}  // namespace
}  // namespace trimtab::agent
