// Negative log likelihood: one target per sample and position. A target that is no class gives NaN,
// as a kernel cannot raise.

#define INPUT_OFFSET(i) (((i) / inner * classes + target[target_at + (i)]) * inner + (i) % inner)
#define IGNORED(i) (target[target_at + (i)] == ignore_index)
#define IS_CLASS(i) (target[target_at + (i)] >= 0 && target[target_at + (i)] < classes)
#define WEIGHT(i) (HAS_WEIGHT ? LOAD(weight, weight_at + target[target_at + (i)]) : (T)1)
#define SHARED_ARGUMENTS \
  const long count, const long classes, const long inner, const long ignore_index, \
  __global const long* target, const long target_at, \
  __global const ELEMENT* weight, const long weight_at

__kernel void elementwise_loss(SHARED_ARGUMENTS, __global const ELEMENT* in, const long in_at,
                               __global ELEMENT* out)
{
  const long i = get_global_id(0);
  if (i >= count) return;
  const T loss = IS_CLASS(i) ? -WEIGHT(i) * LOAD(in, in_at + INPUT_OFFSET(i)) : (T)NAN;
  STORE(out, i, IGNORED(i) ? (T)0 : loss);
}

// one work-group: sums of its items are reduced in a fixed order
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void reduced_loss(SHARED_ARGUMENTS, __global const ELEMENT* in, const long in_at,
                  __global ELEMENT* out, __global ELEMENT* total)
{
  __local T sums[ITEMS], weights[ITEMS];
  const int item = get_local_id(0);
  T sum = 0, weight_sum = 0;
  for (long i = item; i < count; i += ITEMS) {
    if (IGNORED(i)) continue;
    const bool is_class = IS_CLASS(i);
    const T class_weight = is_class ? WEIGHT(i) : (T)NAN;
    sum -= is_class ? class_weight * LOAD(in, in_at + INPUT_OFFSET(i)) : (T)NAN;
    weight_sum += class_weight;
  }
  sums[item] = sum;
  weights[item] = weight_sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) {
    if (item < half_) {
      sums[item] += sums[item + half_];
      weights[item] += weights[item + half_];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (item == 0) {
    STORE(out, 0, IS_MEAN ? sums[0] / weights[0] : sums[0]);
    STORE(total, 0, weights[0]);
  }
}

__kernel void loss_gradient(SHARED_ARGUMENTS, __global const ELEMENT* grad, const long grad_at,
                            const long grad_step,
                            __global const ELEMENT* total, const long total_at,
                            __global ELEMENT* out)
{
  const long id = get_global_id(0);
  if (id >= count * classes) return;
  const long c = id / inner % classes, i = id / inner / classes * inner + id % inner;
  if (IGNORED(i) || c != target[target_at + i]) { STORE(out, id, (T)0); return; }
  const T value = -WEIGHT(i) * LOAD(grad, grad_at + i * grad_step);
  STORE(out, id, IS_MEAN ? value / LOAD(total, total_at) : value);
}
