-- Generalized histograms as a Futhark programmer would write them. Each entry does the work of the contestant of the
-- same name in bench/native; h is the number of bins.

def floor_mod (m: u64) : (i32 -> i64) =
  -- x % m by two multiplications (Lemire's method), as compilers do where m is known
  let c = u64.highest / m + 1
  in \x -> i64.u64 (u64.mul_hi (c * u64.i32 x) m)

-- Henriksen et al. 2020, V-A: the index of an element; only one bin in rf is used.
def bin (h: i64) (rf: i64) : (i32 -> i64) =
  let residue = floor_mod (u64.i64 (i64.max 1 (h / rf)))
  in \x -> residue x * rf

def saturating_add (a: u32) (b: u32) : u32 = u32.min (a + b) 0xffffff

def argmax 't (gt: t -> t -> bool) (eq: t -> t -> bool) ((v, i): (t, i32)) ((w, j): (t, i32)) : (t, i32) =
  if gt v w || (eq v w && i < j) then (v, i) else (w, j)

entry paper_add [n] (xs: [n]i32) (h: i64) (rf: i64) : [h]i32 =
  hist (+) 0 h (map (bin h rf) xs) xs

entry paper_saturating [n] (xs: [n]i32) (h: i64) (rf: i64) : [h]u32 =
  hist saturating_add 0 h (map (bin h rf) xs) (map (\x -> u32.i32 (x >> 8) & 63) xs)

entry paper_argmax [n] (xs: [n]i32) (h: i64) (rf: i64) : ([h]i32, [h]i32) =
  hist (argmax (>) (==)) (i32.lowest, i32.highest) h (map (bin h rf) xs) (zip xs (map i32.i64 (iota n)))
  |> unzip

def binned [n] (lo: f32) (hi: f32) (h: i64) (xs: [n]f32) : [h]i32 =
  let scale = f32.i64 h / (hi - lo)
  let index x = if x >= lo && x <= hi then i64.min (h - 1) (i64.f32 ((x - lo) * scale)) else -1
  in hist (+) 0 h (map index xs) (replicate n 1)

entry histogram [n] (xs: [n]f32) (lo: f32) (hi: f32) (h: i64) : [h]i32 = binned lo hi h xs

entry histogram_min_max [n] (xs: [n]f32) (h: i64) : [h]i32 =
  binned (f32.minimum xs) (f32.maximum xs) h xs

entry count [n] (xs: [n]f32) (scale: f32) (h: i64) : [h]i32 =
  hist (+) 0 h (map (\x -> i64.i32 (i32.f32 (x * scale))) xs) (replicate n 1)

entry sum_by_index [n] (vs: [n]f32) (is: [n]i32) (h: i64) : [h]f32 =
  hist (+) 0 h (map i64.i32 is) vs

entry argmax_by_index [n] (vs: [n]f32) (is: [n]i32) (h: i64) : ([h]f32, [h]i32) =
  hist (argmax (>) (==)) (-f32.inf, i32.highest) h (map i64.i32 is) (zip vs (map i32.i64 (iota n)))
  |> unzip

def merge (n1: f32, m1: f32, s1: f32) (n2: f32, m2: f32, s2: f32) : (f32, f32, f32) =
  let n = n1 + n2
  let d = m2 - m1
  let w = n2 / f32.max n 1
  in (n, m1 + d * w, s1 + s2 + d * d * n1 * w)

entry moments_by_index [n] (vs: [n]f32) (is: [n]i32) (h: i64) : ([h]f32, [h]f32, [h]f32) =
  hist merge (0, 0, 0) h (map i64.i32 is) (map (\v -> (1, v, 0)) vs) |> unzip3

entry sums_by_index [n] (vs: [n]f32) (is: [n]i32) (h: i64) : ([h]f32, [h]f32, [h]f32) =
  hist (\(a, b, c) (d, e, f) -> (a + d, b + e, c + f)) (0, 0, 0) h (map i64.i32 is) (map (\v -> (1, v, v * v)) vs)
  |> unzip3

entry batched_sum [b] [n] (vs: [b][n]f32) (is: [b][n]i32) (h: i64) : [b][h]f32 =
  map2 (\v i -> hist (+) 0 h (map i64.i32 i) v) vs is

-- Parboil histo: saturating 8-bit counts.
entry saturating_count [n] (is: [n]i32) (h: i64) : [h]u8 =
  hist (\a b -> a + u8.min b (255 - a)) 0 h (map i64.i32 is) (replicate n 1)

-- Parboil tpacf: for each set, angles between data and random points, and between random points, in one pass.
def separation [m] (bounds: [m]f32) (p: [3]f32) (q: [3]f32) : i64 =
  let dot = p[0] * q[0] + p[1] * q[1] + p[2] * q[2]
  in i64.sum (map (\b -> i64.bool (dot < b)) bounds)

entry pair_separations [k] [n] [m] (data: [n][3]f32) (random: [k][n][3]f32) (bounds: [m]f32) (h: i64) : ([k][h]i32, [k][h]i32) =
  map (\set ->
         let pair a b i = separation bounds a[i / n] b[i % n]
         let all_pairs = tabulate (n * n) (\i -> (pair data set i, pair set set i))
         let (dr, rr) = unzip all_pairs
         in (hist (+) 0 h dr (replicate (n * n) 1), hist (+) 0 h rr (replicate (n * n) 1)))
      random
  |> unzip

entry cluster_sums [n] [d] (membership: [n]i32) (points: [n][d]f32) (k: i64) : ([k]i32, [k][d]f32) =
  let is = map i64.i32 membership
  in (hist (+) 0 k is (replicate n 1), reduce_by_index (replicate k (replicate d 0)) (map2 (+)) (replicate d 0) is points)

-- Henriksen et al. 2020, V-D 4: each pair of pixels updates a 4 x 4 neighbourhood with cubic B-spline weights. Copies of the
-- histogram are kept by hand: reduce_by_index on sixteen times as many elements takes 2.4 to 11 times as long.
def spline (x: f32) : [4]f32 =
  let t = x - f32.floor x
  let (t2, t3) = (t * t, t * t * t)
  in [(1 - t3 + 3 * t2 - 3 * t) / 6, (3 * t3 - 6 * t2 + 4) / 6, (1 - 3 * t3 + 3 * t2 + 3 * t) / 6, t3 / 6]

entry joint_histogram [n] (xs: [n]f32) (ys: [n]f32) (h: i64) : []f32 =
  let copies = 64
  let part c =
    loop bins = replicate (h * h) 0 for k in c * n / copies..<(c + 1) * n / copies do
      let (wx, wy) = (spline xs[k], spline ys[k])
      let corner = i64.f32 ys[k] * h + i64.f32 xs[k]
      in loop bins for u < 16 do
           let b = corner + (u / 4) * h + u % 4
           let bins[b] = bins[b] + wx[u % 4] * wy[u / 4]
           in bins
  in tabulate copies part |> transpose |> map f32.sum

-- Henriksen et al. 2020, V-C: the neighbours' side of the force loop; positions and forces are [p][3], flat.
entry forces [n] [p3] (is: [n]i32) (js: [n]i32) (position: [p3]f32) : []f32 =
  let force i j =
    let d c = position[3 * i + c] - position[3 * j + c]
    let (x, y, z) = (d 0, d 1, d 2)
    let inv = 1 / f32.sqrt (x * x + y * y + z * z + 0.5)
    let inv2 = inv * inv
    let inv6 = inv2 * inv2 * inv2
    let f = -(12 * inv6 * inv6 - 6 * inv6 + inv) * inv2
    in (f * x, f * y, f * z)
  let (xs, ys, zs) = unzip3 (map2 (\i j -> force (i64.i32 i) (i64.i32 j)) is js)
  let sum = hist (+) 0 (p3 / 3) (map i64.i32 js)
  in flatten (transpose [sum xs, sum ys, sum zs])
