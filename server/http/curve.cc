#include "server/http/curve.h"

#include <algorithm>
#include <cmath>

namespace trimtab::server {
namespace {

// A bucket of one row makes one point, a wider one up to three.
size_t MaxBuckets(size_t max_points, uint64_t rows_per_bucket) {
  return rows_per_bucket == 1 ? max_points : max_points / 3;
}

}  // namespace

MinMaxCurve::MinMaxCurve(size_t max_points) : max_points_(std::max(max_points, kMinPoints)) {}

void MinMaxCurve::Merge(Bucket* into, const Bucket& from) {
  if (from.finite) {
    if (!into->finite || from.low.value < into->low.value) into->low = from.low;
    if (!into->finite || from.high.value > into->high.value) into->high = from.high;
    into->finite = true;
  }
  if (from.non_finite && !into->non_finite) {
    into->odd = from.odd;
    into->non_finite = true;
  }
}

void MinMaxCurve::Add(uint64_t step, float value) {
  const Point point{rows_++, step, value};
  Bucket one;
  if (std::isfinite(value)) {
    one.finite = true;
    one.low = one.high = point;
  } else {
    one.non_finite = true;
    one.odd = point;
  }
  if (!buckets_.empty() && rows_in_last_ < rows_per_bucket_) {
    Merge(&buckets_.back(), one);
    ++rows_in_last_;
    return;
  }
  buckets_.push_back(one);
  rows_in_last_ = 1;
  while (buckets_.size() > MaxBuckets(max_points_, rows_per_bucket_)) Halve();
}

void MinMaxCurve::ShrinkTo(size_t max_points) {
  max_points_ = std::min(max_points_, std::max(max_points, kMinPoints));
  while (buckets_.size() > MaxBuckets(max_points_, rows_per_bucket_)) Halve();
}

void MinMaxCurve::Halve() {
  const size_t before = buckets_.size();
  for (size_t i = 0; i < before; i += 2) {
    Bucket merged = buckets_[i];
    if (i + 1 < before) Merge(&merged, buckets_[i + 1]);
    buckets_[i / 2] = merged;
  }
  // With an even count the last pair's first bucket was full, so its rows add up to the ones of the last.
  if (before % 2 == 0) rows_in_last_ += rows_per_bucket_;
  buckets_.resize((before + 1) / 2);
  rows_per_bucket_ *= 2;
}

std::vector<CurvePoint> MinMaxCurve::Points() const {
  std::vector<CurvePoint> points;
  points.reserve(max_points_);
  std::vector<Point> kept;
  for (const Bucket& bucket : buckets_) {
    kept.clear();
    if (bucket.finite) kept.push_back(bucket.low);
    if (bucket.finite && bucket.high.row != bucket.low.row) kept.push_back(bucket.high);
    if (bucket.non_finite) kept.push_back(bucket.odd);
    std::sort(kept.begin(), kept.end(), [](const Point& a, const Point& b) { return a.row < b.row; });
    for (const Point& point : kept) points.push_back({point.step, point.value});
  }
  return points;
}

}  // namespace trimtab::server
