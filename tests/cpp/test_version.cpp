#include <gtest/gtest.h>

#include "base/version.h"

namespace ortmodule {
namespace {

TEST(Version, IsThePackagesVersion) { EXPECT_EQ(version(), ORTM_VERSION); }

}  // namespace
}  // namespace ortmodule
