// The negative logarithm of what a target was given; places of an image each have one. Where a
// target is no class at all, it is not a number.

#define AT(i) (((i) / inner * classes + target[target_at + (i)]) * inner + (i) % inner)
#define IGNORED(i) (target[target_at + (i)] == ignored)
#define IS_CLASS(i) (target[target_at + (i)] >= 0 && target[target_at + (i)] < classes)
#define WEIGHT(i) (HAS_WEIGHT ? weight[weight_at + target[target_at + (i)]] : (T)1)
#define GIVEN const long count, const long classes, const long inner, const long ignored, \
  __global const long* target, const long target_at, \
  __global const T* weight, const long weight_at

__kernel void each_loss(GIVEN, __global const T* in, const long in_at, __global T* out)
{
  const long i = get_global_id(0);
  if (i >= count) return;
  out[i] = IGNORED(i) ? (T)0 : IS_CLASS(i) ? -WEIGHT(i) * in[in_at + AT(i)] : (T)NAN;
}

// one group: sums of items are added up in one order
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void whole_loss(GIVEN, __global const T* in, const long in_at, __global T* out, __global T* total)
{
  __local T sums[ITEMS], weights[ITEMS];
  const int item = get_local_id(0);
  T sum = 0, all = 0;
  for (long i = item; i < count; i += ITEMS) {
    if (IGNORED(i)) continue;
    const bool is_class = IS_CLASS(i);
    const T by = is_class ? WEIGHT(i) : (T)NAN;
    sum -= is_class ? by * in[in_at + AT(i)] : (T)NAN;
    all += by;
  }
  sums[item] = sum;
  weights[item] = all;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) {
    if (item < half_) {
      sums[item] += sums[item + half_];
      weights[item] += weights[item + half_];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (item == 0) {
    out[0] = IS_MEAN ? sums[0] / weights[0] : sums[0];
    total[0] = weights[0];
  }
}

__kernel void of_loss(GIVEN, __global const T* grad, const long grad_at, const long grad_each,
                      __global const T* total, const long total_at, __global T* out)
{
  const long at = get_global_id(0);
  if (at >= count * classes) return;
  const long c = at / inner % classes, i = at / inner / classes * inner + at % inner;
  if (IGNORED(i) || c != target[target_at + i]) { out[at] = 0; return; }
  const T value = -WEIGHT(i) * grad[grad_at + i * grad_each];
  out[at] = IS_MEAN ? value / total[total_at] : value;
}
