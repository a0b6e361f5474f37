# SPDX-License-Identifier: Apache-2.0
"""Views as files: a folder of SQL with the definitions of views, compared with a catalog and applied to it."""
