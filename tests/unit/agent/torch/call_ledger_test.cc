#include "agent/torch/call_ledger.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace trimtab::agent {
namespace {

const void* Address(uint64_t i) { return reinterpret_cast<const void*>((i + 1) << 6); }

ForwardCall Call(uint64_t fingerprint = 0, int heads = 4, int layer = -1) {
  ForwardCall call;
  call.signature.heads = heads;
  call.explicit_layer = layer;
  call.fingerprint = fingerprint;
  return call;
}

class CallLedgerTest : public testing::Test {
 protected:
  CallLedger::Sink Sink() {
    return [this](int layer, const ForwardRecord& record) {
      layers_.push_back(layer);
      fingerprints_.push_back(record.call.fingerprint);
    };
  }
  int Forward(const ForwardCall& call, uint64_t address, uint64_t step = 1) {
    const int record = ledger_.Open(call, step, Sink());
    if (record >= 0) ledger_.Bind(record, Address(address));
    return record;
  }
  bool Backward(uint64_t address) {
    const int record = ledger_.Find(Address(address));
    if (record < 0) return false;
    ledger_.Finish(record);
    return true;
  }

  CallLedger ledger_;
  std::vector<int> layers_;
  std::vector<uint64_t> fingerprints_;
};

TEST_F(CallLedgerTest, LayersFollowTheOrderOfForwards) {
  for (int i = 0; i < 3; ++i) Forward(Call(i), i);
  for (int i = 2; i >= 0; --i) EXPECT_TRUE(Backward(i));
  ledger_.CloseStep(1, Sink());
  EXPECT_EQ(layers_, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(fingerprints_, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(ledger_.live(), 0);
}

TEST_F(CallLedgerTest, APhaseEndsWithTheFirstForwardAfterABackward) {
  for (int micro = 0; micro < 2; ++micro) {
    for (int i = 0; i < 2; ++i) Forward(Call(), i);
    for (int i = 1; i >= 0; --i) EXPECT_TRUE(Backward(i));
  }
  ledger_.CloseStep(1, Sink());
  EXPECT_EQ(layers_, (std::vector<int>{0, 1, 0, 1}));
}

TEST_F(CallLedgerTest, PredictionsComeFromTheLastPhase) {
  const int first = Forward(Call(), 0);
  EXPECT_EQ(ledger_.PredictLayer(first), -1);
  Forward(Call(), 1);
  Backward(0);
  Backward(1);
  ledger_.CloseStep(1, Sink());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ledger_.PredictLayer(Forward(Call(), i)), i % 2);
}

TEST_F(CallLedgerTest, ForwardsWithoutABackwardDoNotShiftLayers) {
  for (uint64_t step = 1; step <= 2; ++step) {
    for (int i = 0; i < 2; ++i) Forward(Call(), 10 + i, step);  // an evaluation
    for (int i = 0; i < 2; ++i) Forward(Call(), i, step);
    for (int i = 0; i < 2; ++i) Backward(i);
    ledger_.CloseStep(step, Sink());
  }
  EXPECT_EQ(layers_, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(ledger_.dropped_without_backward(), 2U);  // those of step 1; step 2 may still get theirs
  EXPECT_EQ(ledger_.order_changes(), 0U);
}

TEST_F(CallLedgerTest, PipelinedMicroBatchesKeepTheirLayers) {
  // One forward, one backward: the second micro-batch's forwards come before the first one's backward.
  for (int i = 0; i < 2; ++i) Forward(Call(0), i);
  for (int micro = 1; micro <= 3; ++micro) {
    for (int i = 0; i < 2; ++i) Forward(Call(micro), 10 * micro + i);
    for (int i = 1; i >= 0; --i) EXPECT_TRUE(Backward(10 * (micro - 1) + i));
  }
  for (int i = 1; i >= 0; --i) EXPECT_TRUE(Backward(30 + i));
  ledger_.CloseStep(1, Sink());
  ASSERT_EQ(layers_.size(), 8U);
  for (size_t i = 0; i < layers_.size(); ++i) EXPECT_EQ(layers_[i], static_cast<int>(i % 2)) << i;
}

TEST_F(CallLedgerTest, SignaturesHaveLayersOfTheirOwn) {
  for (int i = 0; i < 4; ++i) Forward(Call(i, i % 2 == 0 ? 4 : 8), i);
  for (int i = 0; i < 4; ++i) Backward(i);
  ledger_.CloseStep(1, Sink());
  ASSERT_EQ(ledger_.layers().size(), 4U);
  EXPECT_EQ(ledger_.layers()[1].signature.heads, 8);
}

TEST_F(CallLedgerTest, NamedLayersKeepTheirNames) {
  Forward(Call(0, 4, 7), 0);
  Forward(Call(1, 4, 3), 1);
  Backward(0);
  Backward(1);
  ledger_.CloseStep(1, Sink());
  EXPECT_EQ(layers_, (std::vector<int>{7, 3}));
  EXPECT_FALSE(ledger_.layers()[0].seen);
}

TEST_F(CallLedgerTest, AReusedAddressBelongsToTheLastOwner) {
  const int old = Forward(Call(1), 0);
  const int young = Forward(Call(2), 0);
  EXPECT_EQ(ledger_.Find(Address(0)), young);
  EXPECT_EQ(ledger_.record(old).key, nullptr);
  ledger_.Forget(Address(0));
  EXPECT_FALSE(Backward(0));
}

TEST_F(CallLedgerTest, ARecomputationIsFoundByContents) {
  const int first = Forward(Call(11), 0);
  const int second = Forward(Call(22), 0);  // checkpointing freed the first output
  EXPECT_EQ(ledger_.MatchRecomputed(Call(11)), first);
  EXPECT_EQ(ledger_.MatchRecomputed(Call(22)), second);
  EXPECT_EQ(ledger_.MatchRecomputed(Call(33)), second);  // other bits: the latest open one
  EXPECT_EQ(ledger_.MatchRecomputed(Call(11, 8)), -1);
  ledger_.Bind(first, Address(5));
  EXPECT_TRUE(Backward(5));
  EXPECT_EQ(ledger_.MatchRecomputed(Call(11)), second);
}

TEST_F(CallLedgerTest, RecordsAreBoundedAndTheOldestGivesWay) {
  for (int i = 0; i < CallLedger::kMaxRecords + 10; ++i) Forward(Call(i), i);
  EXPECT_EQ(ledger_.live(), CallLedger::kMaxRecords);
  EXPECT_EQ(ledger_.dropped_without_backward(), 10U);
  EXPECT_FALSE(Backward(9));
  EXPECT_TRUE(Backward(10));
  EXPECT_TRUE(Backward(CallLedger::kMaxRecords + 9));
}

TEST_F(CallLedgerTest, SignaturesAreBounded) {
  for (int i = 0; i < CallLedger::kMaxSignatures; ++i) EXPECT_GE(Forward(Call(0, i + 1), i), 0);
  EXPECT_EQ(Forward(Call(0, 1000), 99), -1);
}

TEST_F(CallLedgerTest, LayersAreBounded) {
  for (int i = 0; i < TRIMTAB_MAX_LAYERS + 3; ++i) Forward(Call(i), i);
  for (int i = 0; i < TRIMTAB_MAX_LAYERS + 3; ++i) Backward(i);
  ledger_.CloseStep(1, Sink());
  EXPECT_EQ(layers_.size(), static_cast<size_t>(TRIMTAB_MAX_LAYERS));
  EXPECT_EQ(ledger_.layers_over_limit(), 3U);
}

TEST_F(CallLedgerTest, AddressesSurviveManyInsertionsAndDeletions) {
  uint64_t state = 1;
  auto random = [&state] { return state = state * 6364136223846793005ull + 1442695040888963407ull, state >> 40; };
  std::vector<int> owner(3000, -1);
  for (int round = 0; round < 50000; ++round) {
    if (ledger_.live() == CallLedger::kMaxRecords) {  // before the bound decides which record lives
      ledger_.Clear();
      owner.assign(owner.size(), -1);
    }
    const uint64_t address = random() % owner.size();
    if (random() % 3 == 0) {
      ledger_.Forget(Address(address));
      owner[address] = -1;
    } else {
      owner[address] = Forward(Call(round), address, round);
    }
    const uint64_t probe = random() % owner.size();
    ASSERT_EQ(ledger_.Find(Address(probe)), owner[probe]) << round;
  }
}

}  // namespace
}  // namespace trimtab::agent
