#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/cli/commands.h"

namespace trimtab::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(ParseLayers, ReadsNumbersAndRanges) {
  EXPECT_THAT(ParseLayers("0"), ElementsAre(0));
  EXPECT_THAT(ParseLayers("0,3,5-8"), ElementsAre(0, 3, 5, 6, 7, 8));
  EXPECT_THAT(ParseLayers("0-1023"), SizeIs(1024));
}

TEST(ParseLayers, RefusesWhatIsMalformedOrTooMany) {
  for (const char* text : {"", ",", "1,", "a", "1-", "-1", "3-2", "1024", "0-1023,0", "1 ,2", "99999999999"}) {
    EXPECT_THAT(ParseLayers(text), IsEmpty()) << text;
  }
}

}  // namespace
}  // namespace trimtab::cli
