// Part of both templates. factor: what is scaled to one top, scaled to another; 0 where there was nothing, NaN where a
// top is none or infinite. higher: the higher of two tops, NaN where one is.
// ---
auto factor = [](float from, float to) {
  return ca::exp(ca::splat<float, 1>(from - (to == -INFINITY ? 0.f : to))).v[0];
};
auto higher = [](float a, float b) { return a > b ? a : b >= a ? b : NAN; };
