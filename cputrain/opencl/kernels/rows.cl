// Rows that are normalised, each by a group of items: what is in local memory is added up in one
// order. Rows lie behind one another, each without gaps.

#define LOAD for (int i = item; i < size; i += ITEMS)
#define TOGETHER(name, own, with) { \
  name[item] = own; \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) { \
    if (item < half_) { const T a = name[item], b = name[item + half_]; name[item] = with; } \
    barrier(CLK_LOCAL_MEM_FENCE); \
  } \
  own = name[0]; \
  barrier(CLK_LOCAL_MEM_FENCE); }
#define ROW const int item = get_local_id(0); const long row = get_group_id(0);
#define KERNEL __kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void

KERNEL softmax(const int size, __global const T* in, const long in_at, __global T* out)
{
  __local T shared[ITEMS];
  ROW
  in += in_at + row * size;
  out += row * size;
  T most = -INFINITY, sum = 0;
  LOAD { const T x = in[i]; most = x > most || x != x ? x : most; }
  TOGETHER(shared, most, (a > b || a != a ? a : b))
  LOAD sum += exp(in[i] - most);
  TOGETHER(shared, sum, a + b)
#if IS_LOG
  sum = log(sum);
  LOAD out[i] = in[i] - most - sum;
#else
  LOAD out[i] = exp(in[i] - most) / sum;
#endif
}

KERNEL of_softmax(const int size, __global const T* grad, const long grad_at,
                  __global const T* given, const long given_at, __global T* out)
{
  __local T shared[ITEMS];
  ROW
  grad += grad_at + row * size;
  given += given_at + row * size;
  out += row * size;
  T sum = 0;
#if IS_LOG
  LOAD sum += grad[i];
  TOGETHER(shared, sum, a + b)
  LOAD out[i] = grad[i] - exp(given[i]) * sum;
#else
  LOAD sum += grad[i] * given[i];
  TOGETHER(shared, sum, a + b)
  LOAD out[i] = given[i] * (grad[i] - sum);
#endif
}

KERNEL normalised(const int size, __global const T* in, const long in_at,
                  __global const T* weight, const long weight_at,
                  __global const T* bias, const long bias_at, const T eps,
                  __global T* out, __global T* mean, __global T* inverse)
{
  __local T shared[ITEMS];
  ROW
  in += in_at + row * size;
  out += row * size;
  T sum = 0, squares = 0;
  LOAD sum += in[i];
  TOGETHER(shared, sum, a + b)
  const T middle = sum / size;
  LOAD { const T x = in[i] - middle; squares += x * x; }
  TOGETHER(shared, squares, a + b)
  const T by = 1 / sqrt(squares / size + eps);
  LOAD out[i] = (in[i] - middle) * by * (HAS_WEIGHT ? weight[weight_at + i] : (T)1)
                + (HAS_BIAS ? bias[bias_at + i] : (T)0);
  if (item == 0) { mean[row] = middle; inverse[row] = by; }
}

KERNEL of_normalised(const int size, __global const T* grad, const long grad_at,
                     __global const T* in, const long in_at,
                     __global const T* mean, const long mean_at,
                     __global const T* inverse, const long inverse_at,
                     __global const T* weight, const long weight_at, __global T* out)
{
  __local T shared[ITEMS];
  ROW
  grad += grad_at + row * size;
  in += in_at + row * size;
  out += row * size;
  const T middle = mean[mean_at + row], by = inverse[inverse_at + row];
#define SCALED (grad[i] * (HAS_WEIGHT ? weight[weight_at + i] : (T)1))
  T sum = 0, along = 0;
  LOAD { sum += SCALED; along += SCALED * (in[i] - middle) * by; }
  TOGETHER(shared, sum, a + b)
  TOGETHER(shared, along, a + b)
  LOAD out[i] = by * (SCALED - sum / size - (in[i] - middle) * by * along / size);
}

// gradients of weight and bias: columns of parts of the rows
__kernel void of_columns(const long rows, const int size, const int parts,
                         __global const T* grad, const long grad_at,
                         __global const T* in, const long in_at,
                         __global const T* mean, const long mean_at,
                         __global const T* inverse, const long inverse_at,
                         __global T* of_weight, __global T* of_bias)
{
  const int i = get_global_id(0), part = get_global_id(1);
  if (i >= size) return;
  T along = 0, sum = 0;
  for (long row = part; row < rows; row += parts) {
    const T value = grad[grad_at + row * size + i];
    sum += value;
    along += value * (in[in_at + row * size + i] - mean[mean_at + row])
             * inverse[inverse_at + row];
  }
  of_weight[(long)part * size + i] = along;
  of_bias[(long)part * size + i] = sum;
}
