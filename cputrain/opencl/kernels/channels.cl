// Batch normalisation. An element of channel c is at (image * C + c) * inner + place. Sums of a
// channel are made by groups of items, each of a part of its elements; the groups that need them all
// put them together, in one order.
// Of an image they are a mean and how far its elements are from that, squared, as they come: however
// far from nothing they are, and whatever a single one is, nothing is lost. N counts elements: an int
// where that will do, as a GPU divides those in a fraction of the time.

#define EACH_ELEMENT \
  for (N i = (N)get_group_id(0) * ITEMS + item; i < (N)count; i += (N)get_global_size(0))
#define PLACE(i) (((i) / inner * C + c) * inner + (i) % inner)

#define SHARED __local T one[ITEMS], two[ITEMS];
#define ADD_UP(sum, other) { \
  one[item] = sum; two[item] = other; \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) { \
    if (item < half_) { one[item] += one[item + half_]; two[item] += two[item + half_]; } \
    barrier(CLK_LOCAL_MEM_FENCE); \
  } }

// what is known of many elements, and of others, together
#define JOIN(many, mean, apart, others, their, theirs) { \
  const T all = (many) + (others); \
  if (all > 0) { \
    const T between = (their) - (mean), share = (others) / all; \
    mean += between * share; \
    apart += (theirs) + between * between * (many) * share; \
    many = all; \
  } }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void parts_of(const int C, const int inner, const long count, const int parts,
              __global const T* in, const long in_at, __global T* out)
{
  __local T counts[ITEMS], means[ITEMS], aparts[ITEMS];
  const int item = get_local_id(0), c = get_group_id(1);
  in += in_at;
  T many = 0, mean = 0, apart = 0;
  EACH_ELEMENT {
    const T x = in[PLACE(i)], before = x - mean;
    many += 1;
    mean += before / many;
    apart += before * (x - mean);
  }
  counts[item] = many; means[item] = mean; aparts[item] = apart;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) {
    if (item < half_) {
      JOIN(many, mean, apart, counts[item + half_], means[item + half_], aparts[item + half_])
      counts[item] = many; means[item] = mean; aparts[item] = apart;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (item == 0) {
    out += (c * parts + get_group_id(0)) * 3;
    out[0] = many; out[1] = mean; out[2] = apart;
  }
}

// a channel's mean and inverse deviation, of sums where it IS_TRAINED: the first group keeps them,
// and makes the running ones what they are from now on
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void normalised(const int C, const int inner, const long count, const int parts,
                __global const T* in, const long in_at, __global const T* sums,
                const T eps, const T momentum, __global T* mean, __global T* inverse,
                __global T* running_mean, const long mean_at,
                __global T* running_var, const long var_at,
                __global const T* weight, const long weight_at,
                __global const T* bias, const long bias_at, __global T* out)
{
  __local T shared[2];
  const int item = get_local_id(0), c = get_group_id(1);
  in += in_at;
  if (item == 0) {
    if (IS_TRAINED) {
      T many = 0, middle = 0, apart = 0;
      sums += c * parts * 3;
      for (int part = 0; part < parts; part++, sums += 3)
        JOIN(many, middle, apart, sums[0], sums[1], sums[2])
      shared[0] = middle;
      shared[1] = 1 / sqrt(apart / count + eps);
      if (get_group_id(0) == 0) {
        mean[c] = middle;
        inverse[c] = shared[1];
        if (HAS_RUNNING) {
          running_mean[mean_at + c] += momentum * (middle - running_mean[mean_at + c]);
          running_var[var_at + c] += momentum * (apart / (count - 1) - running_var[var_at + c]);
        }
      }
    } else {
      shared[0] = running_mean[mean_at + c];
      shared[1] = 1 / sqrt(running_var[var_at + c] + eps);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const T middle = shared[0], scale = shared[1] * (HAS_WEIGHT ? weight[weight_at + c] : (T)1);
  const T more = HAS_BIAS ? bias[bias_at + c] : (T)0;
  EACH_ELEMENT out[PLACE(i)] = (in[PLACE(i)] - middle) * scale + more;
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void parts_of_gradient(const int C, const int inner, const long count, const int parts,
                       __global const T* grad, const long grad_at,
                       __global const T* in, const long in_at,
                       __global const T* first, const long first_at, __global T* out)
{
  SHARED
  const int item = get_local_id(0), c = get_group_id(1);
  const T mean = first[first_at + c];
  T sum = 0, along = 0;
  EACH_ELEMENT {
    const T value = grad[grad_at + PLACE(i)];
    sum += value;
    along += value * (in[in_at + PLACE(i)] - mean);
  }
  ADD_UP(sum, along)
  if (item == 0) {
    out += (c * parts + get_group_id(0)) * 2;
    out[0] = one[0]; out[1] = two[0];
  }
}

// gradients of the weight and the bias, which the first group of a channel keeps; and of the input.
// IS_TRAINED: the second is an inverse deviation; else a variance
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gradients(const int C, const int inner, const long count, const int parts,
               __global const T* grad, const long grad_at, __global const T* in, const long in_at,
               __global const T* first, const long first_at,
               __global const T* second, const long second_at, const T eps,
               __global const T* weight, const long weight_at, __global const T* sums,
               __global T* of_weight, __global T* of_bias, __global T* out)
{
  __local T shared[2];
  const int item = get_local_id(0), c = get_group_id(1);
  const T inverse = IS_TRAINED ? second[second_at + c] : 1 / sqrt(second[second_at + c] + eps);
  grad += grad_at;
  in += in_at;
  if (item == 0) {
    T sum = 0, along = 0;
    sums += c * parts * 2;
    for (int part = 0; part < parts; part++, sums += 2) { sum += sums[0]; along += sums[1]; }
    shared[0] = sum;
    shared[1] = along * inverse;
    if (get_group_id(0) == 0) { of_bias[c] = sum; of_weight[c] = shared[1]; }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (!HAS_OUT) return;
  const T middle = first[first_at + c], scale = inverse * (HAS_WEIGHT ? weight[weight_at + c] : (T)1);
  const T mean = shared[0] / count, slope = shared[1] * inverse / count;
  EACH_ELEMENT {
    T value = grad[PLACE(i)];
    if (IS_TRAINED) value -= mean + (in[PLACE(i)] - middle) * slope;
    out[PLACE(i)] = value * scale;
  }
}
