-- Whole programs: each entry does what the function of the same name in bench/cases/fuse.py does.

def mean [n] (xs: [n]f32) : f32 = f32.sum xs / f32.i64 n
def larger (a: f32) (b: f32) : f32 = if a > b then a else b
def smaller (a: f32) (b: f32) : f32 = if a < b then a else b
def largest [n] (xs: [n]f32) : f32 = reduce_comm larger (-f32.inf) xs
def clip (low: i64) (high: i64) (x: f32) : i64 = i64.max low (i64.min high (i64.f32 x))
def indices [n] (xs: [n]i32) : [n]i64 = map i64.i32 xs
def phi (x: f32) : f32 = 0.5 * f32.erfc (-x / f32.sqrt 2)

entry saxpy [n] (x: [n]f32) (y: [n]f32) : [n]f32 = map2 (\a b -> 2.5 * a + b) x y

entry sdot [n] (x: [n]f32) (y: [n]f32) : f32 = f32.sum (map2 (*) x y)

entry rmse [n] (x: [n]f32) (y: [n]f32) : f32 = f32.sqrt (mean (map2 (\a b -> (a - b) * (a - b)) x y))

entry black_scholes [n] (price: [n]f32) (strike: [n]f32) (years: [n]f32) : (f32, f32) =
  let option p k t =
    let spread = 0.3 * f32.sqrt t
    let d1 = (f32.log (p / k) + 0.065 * t) / spread
    let discounted = k * f32.exp (-0.02 * t)
    let call = p * phi d1 - discounted * phi (d1 - spread)
    in (call, call - p + discounted)
  in reduce_comm (\(a, b) (c, d) -> (a + c, b + d)) (0, 0) (map3 option price strike years)

entry forward_difference [n] (x: [n]f32) : [n - 1]f32 = tabulate (n - 1) (\i -> x[i + 1] - x[i])

entry weighted_moving_average [n] (x: [n]f32) : [n - 2]f32 =
  tabulate (n - 2) (\i -> 0.25 * x[i] + 0.5 * x[i + 1] + 0.25 * x[i + 2])

entry jacobi [n] [m] (u: [n][m]f32) : [n][m]f32 =
  tabulate_2d n m (\i j ->
    if i == 0 || j == 0 || i == n - 1 || j == m - 1
    then u[i, j]
    else 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]))

entry matrix_vector [n] [m] (x: [n][m]f32) : [n]f32 =
  map (\row -> f32.sum (map2 (\a j -> a * f32.i64 j / f32.i64 (m - 1)) row (iota m))) x

entry moments [n] (x: [n]f32) : (f32, f32, f32, f32, i32, i32) =
  let (total, low, high, positive) =
    reduce_comm (\(a, b, c, d) (e, f, g, h) -> (a + e, smaller b f, larger c g, d + h))
                (0, f32.inf, -f32.inf, 0)
                (map (\v -> (v, v, v, i32.bool (v > 0))) x)
  let m = total / f32.i64 n
  let first = reduce_comm i32.min i32.highest (map2 (\v i -> if v == high then i32.i64 i else i32.highest) x (iota n))
  in (m, mean (map (\v -> (v - m) * (v - m)) x), low, high, first, positive)

entry kurtosis [n] (x: [n]f32) : f32 =
  let m = mean x
  let (fourth, second) =
    reduce_comm (\(a, b) (c, d) -> (a + c, b + d)) (0, 0) (map (\v -> let s = (v - m) * (v - m) in (s * s, s)) x)
  in fourth / f32.i64 n / (second / f32.i64 n) ** 2

def counts [n] (bins: i64) (at: [n]i64) : [bins]i32 = hist (+) 0 bins at (replicate n 1)

entry two_histograms [n] (x: [n]f32) (y: [n]f32) : ([100]i32, [100]i32) =
  let bin t = clip 0 99 ((t + 4) * 12.5)
  in (counts 100 (map bin x), counts 100 (map2 (\a b -> bin (a * b)) x y))

entry joint_counts [n] (x: [n]f32) (y: [n]f32) : [64][64]i32 =
  let cell t = clip 0 63 ((t + 4) * 8)
  in unflatten (counts (64 * 64) (map2 (\a b -> 64 * cell a + cell b) x y))

entry energy_histogram [n] (x: [n]f32) (y: [n]f32) : [256]f32 =
  let energy = map2 (\a b -> 0.5 * (a * a + b * b)) x y
  in hist (+) 0 256 (map (\e -> clip 0 255 (e * 25)) energy) energy

entry group_summaries [n] (x: [n]f32) (group: [n]i32) : ([1000]f32, [1000]f32, [1000]f32) =
  let at = indices group
  let total = hist (+) 0 1000 at x
  let count = map (f32.max 1) (hist (+) 0 1000 at (replicate n 1f32))
  let squares = hist (+) 0 1000 at (map (\v -> v * v) x)
  let averages = map2 (/) total count
  in (averages, map3 (\s c m -> s / c - m * m) squares count averages, hist larger (-f32.inf) 1000 at x)

entry k_means [n] [k] (points: [n][2]f32) (centres: [k][2]f32) : [k][2]f32 =
  let nearest (p: [2]f32) : i64 =
    (loop (best, at) = (f32.inf, 0) for c < k do
       let d = (p[0] - centres[c, 0]) ** 2 + (p[1] - centres[c, 1]) ** 2
       in if d < best then (d, c) else (best, at)).1
  let sums =
    hist (\(a, b, c) (d, e, f) -> (a + d, b + e, c + f)) (0, 0, 0) k
         (map nearest points) (map (\p -> (p[0], p[1], 1f32)) points)
  in map (\(a, b, c) -> [a / f32.max 1 c, b / f32.max 1 c]) sums

entry drawdown [n] (x: [n]f32) : f32 =
  let wealth = scan (+) 0 (map (* 0.01) x)
  in largest (map2 (-) (scan larger (-f32.inf) wealth) wealth)

entry cumulative_of_function [n] (x: [n]f32) : [n]f32 = scan (+) 0 (map (\v -> f32.exp (-v * v)) x)

entry discounted_returns [n] (reward: [n]f32) (done: [n]bool) : [n]f32 =
  let step (a, b) (c, d) = (a * c, b * c + d)
  in map2 (\r d -> (if d then 0 else 0.99, r)) reward done |> reverse |> scan step (1, 0) |> map (.1) |> reverse

entry sparse_matrix_vector [n] [m] (w: [n]f32) (h: [m]f32) (source: [n]i32) (target: [n]i32) : [m]f32 =
  hist (+) 0 m (indices target) (map2 (\a s -> a * h[s]) w source)

entry logsumexp [n] [m] (x: [n][m]f32) : [n]f32 =
  map (\row -> let top = largest row in top + f32.log (f32.sum (map (\v -> f32.exp (v - top)) row))) x

entry softmax [n] [m] (x: [n][m]f32) : [n][m]f32 =
  map (\row ->
         let top = largest row
         let e = map (\v -> f32.exp (v - top)) row
         let total = f32.sum e
         in map (/ total) e) x

entry layer_norm [n] [m] (x: [n][m]f32) : [n][m]f32 =
  map (\row ->
         let m = mean row
         let var = mean (map (\v -> (v - m) * (v - m)) row)
         in map (\v -> (v - m) / f32.sqrt (var + 1e-5)) row) x
