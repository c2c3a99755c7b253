/*
 * py_layer_layouts.c -- what the entries of a state dict are: names, shapes, and which
 * parameters each has.
 *
 * Of a MultiHeadAttention there are two such layers in PyTorch: the one of d2l, made of
 * four torch.nn.Linear, and torch.nn.MultiheadAttention, where what projects queries,
 * keys and values is one array, if they have as many features. So an entry is some
 * parameters, one after the other, one on top of the other.
 */
#include "py_layer.h"

/* ---- writing them ---------------------------------------------------------------- */

static void
add_entry(layer_layout *layout, const layer_core *core, const char *name, int first,
          int count)
{
    if (core->parameters[first] != NULL) {
        layer_entry *entry = &layout->entries[layout->count++];
        *entry = (layer_entry){.first = first, .count = count};
        PyOS_snprintf(entry->name, sizeof entry->name, "%s", name);
    }
}

/* A matrix is the weight of a torch.nn.Linear, whose bias b_q is that of W_q; another
 * vector is a parameter of its own. */
void
layer_own_layout(const layer_core *core, layer_layout *layout)
{
    for (int i = 0; i < core->score->parameters; i++) {
        const char *name = layer_text(core, i);
        npy_intp dims[PY_PARAMETER_AXES];
        char text[LAYER_TEXT];
        bool matrix = layer_state_shape(core, i, dims) > 1;
        bool bias = core->score->about->has_heads && !matrix;
        PyOS_snprintf(text, sizeof text, bias ? "W%s.bias" : "%s%s", name + bias,
                      matrix ? ".weight" : "");
        add_entry(layout, core, text, i, 1);
    }
}

/* As attn_multi_head has them. */
enum { W_Q, W_K, W_V, W_O, B_Q, B_K, B_V, B_O };

/* torch.nn.MultiheadAttention's; packed: one in_proj_weight. */
static void
write_torch_layout(const layer_core *core, bool packed, layer_layout *layout)
{
    if (packed) {
        add_entry(layout, core, "in_proj_weight", W_Q, 3);
    } else {
        add_entry(layout, core, "q_proj_weight", W_Q, 1);
        add_entry(layout, core, "k_proj_weight", W_K, 1);
        add_entry(layout, core, "v_proj_weight", W_V, 1);
    }
    add_entry(layout, core, "in_proj_bias", B_Q, 3);
    add_entry(layout, core, "out_proj.weight", W_O, 1);
    add_entry(layout, core, "out_proj.bias", B_O, 1);
}

/* Has torch's class such layers? */
static int
check_torch_layout(const layer_core *core)
{
    if (core->query_size != core->num_hiddens) {
        PyErr_Format(PyExc_ValueError,
                     "layout is 'torch', expected 'd2l' where query_size, %zd, is not "
                     "num_hiddens, %zd",
                     core->query_size, core->num_hiddens);
        return -1;
    }
    if (core->num_kv_heads != core->num_heads) {
        PyErr_Format(
            PyExc_ValueError,
            "layout is 'torch', expected 'd2l' where num_kv_heads, %zd, is not "
            "num_heads, %zd",
            core->num_kv_heads, core->num_heads);
        return -1;
    }
    return 0;
}

static bool
is_packed(const layer_core *core)
{
    return core->key_size == core->query_size && core->value_size == core->query_size;
}

int
layer_torch_layout(const layer_core *core, layer_layout *layout)
{
    write_torch_layout(core, is_packed(core), layout);
    return check_torch_layout(core);
}

/* ---- telling them apart ---------------------------------------------------------- */

int
layer_find_layout(const layer_core *core, PyObject *dict, layer_layout *layout)
{
    static const char *const torch[] = {
        "in_proj_weight", "q_proj_weight",   "k_proj_weight", "v_proj_weight",
        "in_proj_bias",   "out_proj.weight", "out_proj.bias"};
    bool packed = is_packed(core);
    *layout = (layer_layout){.count = 0};
    for (size_t i = 0; core->score->about->has_heads && i < Py_ARRAY_LENGTH(torch);
         i++) {
        if (PyDict_GetItemString(dict, torch[i]) == NULL) {
            continue;
        }
        packed = packed && PyDict_GetItemString(dict, "q_proj_weight") == NULL;
        write_torch_layout(core, packed, layout);
        return check_torch_layout(core);
    }
    layer_own_layout(core, layout);
    return 0;
}

int
layer_entry_shape(const layer_core *core, const layer_entry *entry,
                  npy_intp dims[PY_PARAMETER_AXES])
{
    int ndim = layer_state_shape(core, entry->first, dims);
    dims[0] *= entry->count; /* of as many rows each */
    return ndim;
}
