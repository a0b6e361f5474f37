# SPDX-License-Identifier: Apache-2.0
"""Target lag: how late a view may be, and which views must be refreshed now so that none is later."""
