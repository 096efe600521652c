"""mufield's systems as environments of other libraries; each module needs its library's extra."""
