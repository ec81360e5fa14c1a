// The real store in a folder of its own, that a test can close and open again as a restarted server would.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_POLICY_TEST_STORE_H_
#define TRIMTAB_TESTS_UNIT_SERVER_POLICY_TEST_STORE_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/store/store.h"

namespace trimtab::server {

class TestStore {
 public:
  TestStore() {
    std::string folder = (std::filesystem::temp_directory_path() / "trimtab-policy-XXXXXX").string();
    folder_ = mkdtemp(folder.data());
    Open();
  }
  ~TestStore() {
    store_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // Everything that writes to the store must be gone.
  void Reopen() {
    store_.reset();
    Open();
  }
  Store* get() { return store_.get(); }
  Store* operator->() { return store_.get(); }

  std::vector<v1::Event> Events(const std::string& kind = "") {
    auto events = store_->ReadEvents("", 0, 100000, false);
    EXPECT_TRUE(events.ok()) << events.status();
    std::vector<v1::Event> found;
    for (v1::Event& e : *events) {
      if (kind.empty() || e.kind() == kind) found.push_back(std::move(e));
    }
    return found;
  }
  // Kinds of the events of one plan, or of all.
  std::vector<std::string> Kinds(const std::string& plan_id = "") {
    std::vector<std::string> kinds;
    for (const v1::Event& e : Events()) {
      if (plan_id.empty() || e.plan_id() == plan_id) kinds.push_back(e.kind());
    }
    return kinds;
  }

 private:
  void Open() {
    auto store = Store::Open({.path = folder_ + "/data"});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  std::string folder_;
  std::unique_ptr<Store> store_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_POLICY_TEST_STORE_H_
