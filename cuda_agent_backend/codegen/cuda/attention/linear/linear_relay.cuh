// Rows mixed by weights that are scores, by warp groups (sm_90a), as `relay_tiles` multiplies.

namespace ca {

// A: as for `mixing` and `relay_tiles`.
template <class A> struct relay_mixing : relay_tiles<A, mixing_head<A>> {
  typedef relay_tiles<A, mixing_head<A>> base;
  static constexpr int tiles_n = A::block / 8, columns = A::width / 8;
  using base::head, base::first, base::origin, base::sum;

  // The warps that multiply, at a barrier that nothing else has.
  struct team {
    static constexpr int warps = base::multiplying / 32, most_floats = base::slots * base::slot_floats;
    static CA_INLINE int own_warp() { return (int(threadIdx.x) - base::preparing) / 32; }
    static CA_INLINE void meet_warps() { meet(base::turn(base::groups), base::multiplying); }
  };

  // find(block): what this block's head is; asked for again, as there are better uses of registers meanwhile.
  template <class Find> CA_INLINE void run(float* shared, Find find) {
    const mixing_head<A> own = find(blockIdx.x);
    const int count = (own.end - own.begin + A::block - 1) / A::block;
    origin = own.begin;
    this->share(shared, count, find, [&] {
      mixed_rows<A, 1, tiles_n> rows;
      const int row = first + base::own_row() - base::lane() / 4;
      rows.begin();
      this->multiply(first + 64 * base::own_group() < A::queries ? count : 0, count, [](int) {}, [&](float (&score)[A::block / 2], int from) {
        rows.weigh(head, reinterpret_cast<float (&)[1][tiles_n][4]>(score), row, from);
      });
      head = find(opaque(blockIdx.x));
      rows.template finish<team>(head, reinterpret_cast<const float (&)[1][columns][4]>(sum), row, this->tiles);
    });
  }
};

}  // namespace ca
