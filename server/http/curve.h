// A curve thinned while it is read, so that a million rows cost the memory of a few hundred points and no spike is
// lost.
#ifndef TRIMTAB_SERVER_HTTP_CURVE_H_
#define TRIMTAB_SERVER_HTTP_CURVE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trimtab::server {

struct CurvePoint {
  uint64_t step = 0;
  float value = 0;
};

// Keeps, for every bucket of consecutive rows, the first lowest and first highest finite value and the first value that
// is not finite. Buckets start at one row and double whenever there are too many. Until then every row is kept as it
// is.
//
// Not thread-safe. Memory: about 64 bytes × max_points / 3. Add is O(1) amortised.
class MinMaxCurve {
 public:
  static constexpr size_t kMinPoints = 6;

  // At most `max_points` points come out; values below kMinPoints count as kMinPoints.
  explicit MinMaxCurve(size_t max_points);

  void Add(uint64_t step, float value);
  // Lowers the bound. Never raises it.
  void ShrinkTo(size_t max_points);

  size_t rows() const { return rows_; }
  // In the order of the rows.
  std::vector<CurvePoint> Points() const;

 private:
  struct Point {
    uint64_t row = 0, step = 0;
    float value = 0;
  };
  struct Bucket {
    bool finite = false, non_finite = false;
    Point low, high, odd;
  };
  static void Merge(Bucket* into, const Bucket& from);
  void Halve();

  size_t max_points_;
  uint64_t rows_ = 0;
  uint64_t rows_per_bucket_ = 1;
  uint64_t rows_in_last_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_HTTP_CURVE_H_
