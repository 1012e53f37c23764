// Batch norm. An element of channel c is at offset (image * C + c) * inner + position. Several
// work-groups reduce parts of a channel; each group that needs the sums merges all parts, in order.
// A part of the input is reduced to its count, mean and sum of squared differences from the mean
// (Welford's algorithm), which loses no precision if the mean is large. N is the type that counts
// elements: int if it is large enough, as a GPU divides ints faster.

#define EACH_ELEMENT \
  for (N i = (N)get_group_id(0) * ITEMS + item; i < (N)count; i += (N)get_global_size(0))
#define OFFSET(i) (((i) / inner * C + c) * inner + (i) % inner)

#define LOCAL_SUMS __local T sums_a[ITEMS], sums_b[ITEMS];
// sum two values over the work-group, into sums_a[0] and sums_b[0]
#define REDUCE_PAIR(sum, sum_b) { \
  sums_a[item] = sum; sums_b[item] = sum_b; \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) { \
    if (item < half_) { \
      sums_a[item] += sums_a[item + half_]; \
      sums_b[item] += sums_b[item + half_]; \
    } \
    barrier(CLK_LOCAL_MEM_FENCE); \
  } }

// merge count, mean and squares of a second set of elements into the first
#define MERGE_MOMENTS(num, mean, squares, num_b, mean_b, squares_b) { \
  const T total = (num) + (num_b); \
  if (total > 0) { \
    const T delta = (mean_b) - (mean), fraction = (num_b) / total; \
    mean += delta * fraction; \
    squares += (squares_b) + delta * delta * (num) * fraction; \
    num = total; \
  } }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void partial_moments(const int C, const int inner, const long count, const int num_parts,
                     __global const ELEMENT* in, const long in_at, __global T* out)
{
  __local T counts[ITEMS], means[ITEMS], all_squares[ITEMS];
  const int item = get_local_id(0), c = get_group_id(1);
  in += in_at;
  T num = 0, mean = 0, squares = 0;
  EACH_ELEMENT {
    const T x = LOAD(in, OFFSET(i)), delta = x - mean;
    num += 1;
    mean += delta / num;
    squares += delta * (x - mean);
  }
  counts[item] = num; means[item] = mean; all_squares[item] = squares;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) {
    if (item < half_) {
      MERGE_MOMENTS(num, mean, squares, counts[item + half_], means[item + half_],
                    all_squares[item + half_])
      counts[item] = num; means[item] = mean; all_squares[item] = squares;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (item == 0) {
    out += (c * num_parts + get_group_id(0)) * 3;
    out[0] = num; out[1] = mean; out[2] = squares;
  }
}

// normalize with the channel's mean and inverse std: from the partial moments if IS_TRAINING, else
// from the running statistics. The first group of a channel writes mean, inverse std and running
// statistics.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void batch_norm(const int C, const int inner, const long count, const int num_parts,
                __global const ELEMENT* in, const long in_at, __global const T* sums,
                const T eps, const T momentum, __global T* mean, __global T* inverse,
                __global PARAMETER* running_mean, const long mean_at,
                __global PARAMETER* running_var, const long var_at,
                __global const PARAMETER* weight, const long weight_at,
                __global const PARAMETER* bias, const long bias_at, __global ELEMENT* out)
{
  __local T local_values[2];
  const int item = get_local_id(0), c = get_group_id(1);
  in += in_at;
  if (item == 0) {
    if (IS_TRAINING) {
      T num = 0, center = 0, squares = 0;
      sums += c * num_parts * 3;
      for (int part = 0; part < num_parts; part++, sums += 3)
        MERGE_MOMENTS(num, center, squares, sums[0], sums[1], sums[2])
      local_values[0] = center;
      local_values[1] = 1 / sqrt(squares / count + eps);
      if (get_group_id(0) == 0) {
        mean[c] = center;
        inverse[c] = local_values[1];
        if (HAS_RUNNING) {
          const T old_mean = LOAD_PARAMETER(running_mean, mean_at + c);
          const T old_var = LOAD_PARAMETER(running_var, var_at + c);
          STORE_PARAMETER(running_mean, mean_at + c, old_mean + momentum * (center - old_mean));
          STORE_PARAMETER(running_var, var_at + c,
                          old_var + momentum * (squares / (count - 1) - old_var));
        }
      }
    } else {
      local_values[0] = LOAD_PARAMETER(running_mean, mean_at + c);
      local_values[1] = 1 / sqrt(LOAD_PARAMETER(running_var, var_at + c) + eps);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const T center = local_values[0];
  const T scale = local_values[1] * (HAS_WEIGHT ? LOAD_PARAMETER(weight, weight_at + c) : (T)1);
  const T shift = HAS_BIAS ? LOAD_PARAMETER(bias, bias_at + c) : (T)0;
  EACH_ELEMENT STORE(out, OFFSET(i), (LOAD(in, OFFSET(i)) - center) * scale + shift);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void partial_gradient_sums(const int C, const int inner, const long count, const int num_parts,
                           __global const ELEMENT* grad, const long grad_at,
                           __global const ELEMENT* in, const long in_at,
                           __global const STATISTIC* first, const long first_at, __global T* out)
{
  LOCAL_SUMS
  const int item = get_local_id(0), c = get_group_id(1);
  const T mean = LOAD_STATISTIC(first, first_at + c);
  T sum = 0, dot_sum = 0;
  EACH_ELEMENT {
    const T value = LOAD(grad, grad_at + OFFSET(i));
    sum += value;
    dot_sum += value * (LOAD(in, in_at + OFFSET(i)) - mean);
  }
  REDUCE_PAIR(sum, dot_sum)
  if (item == 0) {
    out += (c * num_parts + get_group_id(0)) * 2;
    out[0] = sums_a[0]; out[1] = sums_b[0];
  }
}

// gradients of weight and bias, written by the first group of a channel, and of the input. If
// IS_TRAINING, `second` is the inverse std, else the variance
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gradients(const int C, const int inner, const long count, const int num_parts,
               __global const ELEMENT* grad, const long grad_at,
               __global const ELEMENT* in, const long in_at,
               __global const STATISTIC* first, const long first_at,
               __global const STATISTIC* second, const long second_at, const T eps,
               __global const PARAMETER* weight, const long weight_at, __global const T* sums,
               __global PARAMETER* grad_weight, __global PARAMETER* grad_bias,
               __global ELEMENT* out)
{
  __local T local_values[2];
  const int item = get_local_id(0), c = get_group_id(1);
  const T spread = LOAD_STATISTIC(second, second_at + c);
  const T inverse = IS_TRAINING ? spread : 1 / sqrt(spread + eps);
  grad += grad_at;
  in += in_at;
  if (item == 0) {
    T sum = 0, dot_sum = 0;
    sums += c * num_parts * 2;
    for (int part = 0; part < num_parts; part++, sums += 2) { sum += sums[0]; dot_sum += sums[1]; }
    local_values[0] = sum;
    local_values[1] = dot_sum * inverse;
    if (get_group_id(0) == 0) {
      STORE_PARAMETER(grad_bias, c, sum);
      STORE_PARAMETER(grad_weight, c, local_values[1]);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (!HAS_OUT) return;
  const T center = LOAD_STATISTIC(first, first_at + c);
  const T scale = inverse * (HAS_WEIGHT ? LOAD_PARAMETER(weight, weight_at + c) : (T)1);
  const T mean = local_values[0] / count, slope = local_values[1] * inverse / count;
  EACH_ELEMENT {
    T value = LOAD(grad, OFFSET(i));
    if (IS_TRAINING) value -= mean + (LOAD(in, OFFSET(i)) - center) * slope;
    STORE(out, OFFSET(i), value * scale);
  }
}
