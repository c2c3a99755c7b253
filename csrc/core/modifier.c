/*
 * modifier.c -- see modifier.h.
 */
#include "modifier.h"

#define DECLARE(name) extern const attn_modifier attn_modifier_##name;
ATTN_MODIFIERS(DECLARE)

#define ADDRESS(name) &attn_modifier_##name,
static const attn_modifier *const table[] = {ATTN_MODIFIERS(ADDRESS)};

static const int count = sizeof table / sizeof *table;
_Static_assert(sizeof table / sizeof *table <= ATTN_MODIFIERS_MAX, "attn_call's room");

void
attn_find_modifiers(attn_call *c)
{
    c->modifiers = 0;
    for (int i = 0; i < count; i++) {
        if (table[i]->applies(c->p)) {
            c->modifier[c->modifiers] = table[i];
            c->flows[c->modifiers++] = c->backward && table[i]->flows(c);
        }
    }
}

void
attn_modify_tile(attn_block *block)
{
    const attn_call *c = block->call;
    for (int i = 0; i < c->modifiers; i++) {
        c->modifier[i]->tile(block, block->modifier[i]);
    }
}

bool
attn_modifiers_flow(const attn_call *c)
{
    bool any = false;
    for (int i = 0; i < c->modifiers; i++) {
        any = any || c->flows[i];
    }
    return any;
}

bool
attn_modifiers_keep(const attn_call *c)
{
    bool any = false;
    for (int i = 0; i < c->modifiers; i++) {
        any = any || (c->flows[i] && c->modifier[i]->keeps);
    }
    return any;
}

void
attn_modify_tile_backward(attn_block *block, float *dS)
{
    const attn_call *c = block->call;
    for (int i = c->modifiers - 1; i >= 0; i--) {
        if (c->flows[i]) {
            c->modifier[i]->tile_backward(block, block->modifier[i], dS);
        }
    }
}

void
attn_modify_store_backward(attn_block *block)
{
    const attn_call *c = block->call;
    for (int i = 0; i < c->modifiers; i++) {
        if (c->flows[i] && c->modifier[i]->store_backward != NULL) {
            c->modifier[i]->store_backward(block, block->modifier[i]);
        }
    }
}
