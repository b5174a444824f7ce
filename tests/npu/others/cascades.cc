// SPDX-License-Identifier: Apache-2.0
//
// Kernels that meet in the middle of a call: sums travel from core to core by the cascade.

#include <aie_api/aie.hpp>

extern "C" {

void send_sums(int32_t *in, int32_t n) {
  for (int i = 0; i < n; ++i) {
    v16int32 v = undef_v16int32();
    v = upd_elem(v, 0, in[i] * in[i]);
    put_mcd(v);
  }
}

void add_and_send(int32_t n) {
  for (int i = 0; i < n; ++i) {
    v16int32 v = get_scd_v16int32();
    put_mcd(upd_elem(v, 0, ext_elem(v, 0) + 1000));
  }
}

void take_sums(int32_t *out, int32_t n) {
  for (int i = 0; i < n; ++i) {
    v16int32 v = get_scd_v16int32();
    out[i] = ext_elem(v, 0);
  }
}

// A register of 1024 bits goes as two values.
void send_wide(int32_t *in, int32_t n) {
  v32int32 v = undef_v32int32();
  for (int i = 0; i < n; ++i) v = upd_elem(v, i, in[i]);
  put_mcd(v);
}

void take_wide(int32_t *out, int32_t n) {
  v32int32 v = get_scd_v32int32();
  for (int i = 0; i < n; ++i) out[i] = ext_elem(v, i);
}

}  // extern "C"
