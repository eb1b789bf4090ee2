// Barriers in shared memory that open when bytes have come which others send, or the copy engine brings (sm_90).

namespace ca {

CA_INLINE void barrier_set(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(unsigned(__cvta_generic_to_shared(barrier))) : "memory");
}
CA_INLINE void barriers_are_set() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// The barrier opens once this many bytes more have come.
CA_INLINE void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(unsigned(__cvta_generic_to_shared(barrier))), "r"(bytes) : "memory");
}
// Until the barrier has opened an odd or even number of times: `parity` 0 for the first time, 1 for the second.
CA_INLINE void barrier_wait(uint64_t* barrier, int parity) {
  asm volatile("{\n\t.reg .pred open;\n\tagain:\n\t"
               "mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1;\n\t"
               "@!open bra again;\n\t}"
               :: "r"(unsigned(__cvta_generic_to_shared(barrier))), "r"(parity) : "memory");
}

}  // namespace ca
