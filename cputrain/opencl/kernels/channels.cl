// Batch normalisation. An element of channel c is at (image * C + c) * inner + place. Sums of a
// channel are made by groups of items, each of a part of its elements, and put together in one order.
// What is added up is how far elements are from the channel's first, so that little is lost.

#define EACH_ELEMENT \
  for (long i = (long)part * ITEMS + item; i < count; i += (long)parts * ITEMS)
#define PLACE(i) (((i) / inner * C + c) * inner + (i) % inner)

#define SHARED __local T one[ITEMS], two[ITEMS];
#define ADD_UP(sum, other) { \
  one[item] = sum; two[item] = other; \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) { \
    if (item < half_) { one[item] += one[item + half_]; two[item] += two[item + half_]; } \
    barrier(CLK_LOCAL_MEM_FENCE); \
  } }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void parts_of(const int C, const int inner, const long count, const int parts,
              __global const T* in, const long in_at, __global T* out)
{
  SHARED
  const int item = get_local_id(0), part = get_group_id(0), c = get_group_id(1);
  in += in_at;
  const T level = in[(long)c * inner];
  T sum = 0, squares = 0;
  EACH_ELEMENT { const T x = in[PLACE(i)] - level; sum += x; squares += x * x; }
  ADD_UP(sum, squares)
  if (item == 0) { out[(c * parts + part) * 2] = one[0]; out[(c * parts + part) * 2 + 1] = two[0]; }
}

// mean and inverse deviation of each channel; and what the running ones are from now on
__kernel void whole(const int C, const int inner, const long count, const int parts,
                    __global const T* in, const long in_at, __global const T* sums,
                    const T eps, const T momentum, __global T* mean, __global T* inverse,
                    __global T* running_mean, const long mean_at,
                    __global T* running_var, const long var_at)
{
  const int c = get_global_id(0);
  if (c >= C) return;
  T sum = 0, squares = 0;
  for (int part = 0; part < parts; part++) {
    sum += sums[(c * parts + part) * 2];
    squares += sums[(c * parts + part) * 2 + 1];
  }
  const T apart = sum / count, middle = in[in_at + (long)c * inner] + apart;
  const T variance = max((T)0, squares / count - apart * apart);
  mean[c] = middle;
  inverse[c] = 1 / sqrt(variance + eps);
  if (HAS_RUNNING) {
    running_mean[mean_at + c] += momentum * (middle - running_mean[mean_at + c]);
    running_var[var_at + c] +=
        momentum * (variance * count / (count - 1) - running_var[var_at + c]);
  }
}

// IS_KEPT: the second is an inverse deviation; else a variance
#define INVERSE(c) (IS_KEPT ? second[second_at + (c)] : 1 / sqrt(second[second_at + (c)] + eps))

__kernel void normalised(const int C, const int inner, const long count,
                         __global const T* in, const long in_at,
                         __global const T* first, const long first_at,
                         __global const T* second, const long second_at, const T eps,
                         __global const T* weight, const long weight_at,
                         __global const T* bias, const long bias_at, __global T* out)
{
  const long at = get_global_id(0);
  if (at >= count) return;
  const int c = at / inner % C;
  const T scale = INVERSE(c) * (HAS_WEIGHT ? weight[weight_at + c] : (T)1);
  out[at] = (in[in_at + at] - first[first_at + c]) * scale + (HAS_BIAS ? bias[bias_at + c] : (T)0);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void parts_of_gradient(const int C, const int inner, const long count, const int parts,
                       __global const T* grad, const long grad_at,
                       __global const T* in, const long in_at,
                       __global const T* first, const long first_at, __global T* out)
{
  SHARED
  const int item = get_local_id(0), part = get_group_id(0), c = get_group_id(1);
  const T mean = first[first_at + c];
  T sum = 0, along = 0;
  EACH_ELEMENT {
    const T value = grad[grad_at + PLACE(i)];
    sum += value;
    along += value * (in[in_at + PLACE(i)] - mean);
  }
  ADD_UP(sum, along)
  if (item == 0) { out[(c * parts + part) * 2] = one[0]; out[(c * parts + part) * 2 + 1] = two[0]; }
}

// gradients of the weight and the bias
__kernel void whole_gradient(const int C, const int parts, __global const T* sums,
                             __global const T* second, const long second_at, const T eps,
                             __global T* of_weight, __global T* of_bias)
{
  const int c = get_global_id(0);
  if (c >= C) return;
  T sum = 0, along = 0;
  for (int part = 0; part < parts; part++) {
    sum += sums[(c * parts + part) * 2];
    along += sums[(c * parts + part) * 2 + 1];
  }
  of_bias[c] = sum;
  of_weight[c] = along * INVERSE(c);
}

__kernel void of_input(const int C, const int inner, const long count, const long each,
                       __global const T* grad, const long grad_at,
                       __global const T* in, const long in_at,
                       __global const T* first, const long first_at,
                       __global const T* second, const long second_at, const T eps,
                       __global const T* weight, const long weight_at,
                       __global const T* of_weight, __global const T* of_bias, __global T* out)
{
  const long at = get_global_id(0);
  if (at >= count) return;
  const int c = at / inner % C;
  const T inverse = INVERSE(c), scale = inverse * (HAS_WEIGHT ? weight[weight_at + c] : (T)1);
  T value = grad[grad_at + at];
  if (IS_TRAINED)
    value -= (of_bias[c] + (in[in_at + at] - first[first_at + c]) * inverse * of_weight[c]) / each;
  out[at] = value * scale;
}
